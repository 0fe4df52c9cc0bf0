#include "apps/troupe/plan/parameters.hpp"

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps {

namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

core::Result<std::int64_t> elements_of(const Shape& shape, std::size_t index) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && elements > kMostElements / extent)) {
      return core::fail(
          core::Errc::invalid_argument,
          "parameter {} has an extent of {}; extents are at least 0 and make {} elements at most", index,
          extent, kMostElements);
    }
    elements *= extent;
  }
  return elements;
}

}  // namespace

core::Result<Shape> parse_shape(std::string_view text) {
  Shape shape;
  for (std::string_view rest = text;;) {
    const auto cross = rest.find('x');
    const auto extent = core::parse_number<std::int64_t>(rest.substr(0, cross), {0, kMostElements});
    if (!extent) {
      return core::fail(core::Errc::invalid_argument,
                        "the shape {}: {}; write numbers with 'x' between them, as in 5x4",
                        core::quoted_excerpt(text), extent.error().message);
    }
    shape.push_back(*extent);
    if (cross == std::string_view::npos) return shape;
    rest.remove_prefix(cross + 1);
  }
}

core::Result<std::vector<Shape>> parse_shapes(const ParameterArguments& arguments) {
  const auto& [sizes, texts, shared] = arguments;
  if (sizes.empty() && texts.empty()) {
    return core::fail(
        core::Errc::invalid_argument,
        "there are no parameters; give their elements with --sizes 5000,5000 or their shapes with "
        "--shapes 5x4,2x6");
  }
  if (!sizes.empty() && !texts.empty() && sizes.size() != texts.size()) {
    return core::fail(core::Errc::invalid_argument,
                      "--sizes names {} parameters and --shapes {}; give one of them, or both for the same "
                      "parameters",
                      sizes.size(), texts.size());
  }
  std::vector<Shape> shapes;
  for (const std::string& text : texts) shapes.push_back(TRY(parse_shape(text)));
  if (shapes.empty()) {
    for (const std::int64_t size : sizes) shapes.push_back({size});
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const std::int64_t elements = TRY(elements_of(shapes[i], i));
    if (!sizes.empty() && elements != sizes[i]) {
      return core::fail(core::Errc::invalid_argument,
                        "parameter {} has {} elements by --sizes and {} by --shapes; make them agree", i,
                        sizes[i], elements);
    }
  }
  return shapes;
}

core::Result<std::vector<core::LayoutParameter>> parse_parameters(const ParameterArguments& arguments) {
  const auto shapes = TRY(parse_shapes(arguments));
  std::vector<core::LayoutParameter> parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    core::LayoutParameter parameter{.elements = TRY(elements_of(shape, i))};
    if (shape.size() == 2) {
      parameter.rows = shape[0];
      parameter.columns = shape[1];
    }
    parameters.push_back(parameter);
  }
  for (const std::size_t index : arguments.shared) {
    if (index >= parameters.size()) {
      return core::fail(core::Errc::invalid_argument,
                        "--shared {} names no parameter; there are {}, counted from 0", index,
                        parameters.size());
    }
    parameters[index].shared_embedding = true;
  }
  return parameters;
}

}  // namespace troupe::apps
