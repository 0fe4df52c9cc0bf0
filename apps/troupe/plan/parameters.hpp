#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/buffer_layout.hpp"
#include "core/result.hpp"

namespace troupe::apps {

using Shape = std::vector<std::int64_t>;

/// The parameters of a model as a command line gives them.
struct ParameterArguments {
  std::vector<std::int64_t> sizes;  ///< elements, or
  std::vector<std::string> shapes;  ///< "5x4"; with both, they must agree
  std::vector<std::size_t> shared;  ///< indices of shared embeddings
};

core::Result<Shape> parse_shape(std::string_view text);
/// One shape per parameter; a size counts as a vector.
core::Result<std::vector<Shape>> parse_shapes(const ParameterArguments& arguments);
core::Result<std::vector<core::LayoutParameter>> parse_parameters(const ParameterArguments& arguments);

}  // namespace troupe::apps
