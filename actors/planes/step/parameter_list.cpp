#include "actors/planes/step/parameter_list.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/mx_blocks.hpp"

namespace troupe::actors {

namespace {

core::Result<void> check_gather_dtype(const core::ParameterSpec& spec) {
  if (!spec.gather_dtype) return {};
  const auto wanted = core::name_of(*spec.gather_dtype);
  if (!core::is_mx_element(*spec.gather_dtype)) {
    return core::fail(
        core::Errc::invalid_argument,
        "parameter {} cannot be gathered as {}; ParameterSpec::gather_dtype is f8_e4m3, f8_e5m2 "
        "or nothing",
        spec.name, wanted);
  }
  if (spec.dtype == core::DType::bf16 && spec.trainable) return {};
  const auto reason = !spec.trainable                  ? "is frozen and has no main values that are kept"
                      : spec.dtype == core::DType::f32 ? "is f32 and has no main values beside its own"
                                                       : "is f16, which has not the range of such values";
  return core::fail(
      core::Errc::invalid_argument,
      "parameter {} cannot be gathered as {} because it {}; register it as a bf16 parameter that is "
      "trained, or without ParameterSpec::gather_dtype",
      spec.name, wanted, reason);
}

}  // namespace

core::Result<void> check_parameters(std::span<const core::ParameterSpec> specs) {
  if (specs.empty()) {
    return core::fail(core::Errc::invalid_argument, "a job has no parameters; register at least one");
  }
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    if (std::any_of(spec.shape.begin(), spec.shape.end(), [](auto extent) { return extent < 1; })) {
      return core::fail(core::Errc::invalid_argument,
                        "parameter {} has the shape [{}]; every extent must be above 0", spec.name,
                        fmt::join(spec.shape, ", "));
    }
    bool usable =
        spec.dtype == core::DType::f32 || spec.dtype == core::DType::bf16 || spec.dtype == core::DType::f16;
    if (!usable) {
      return core::fail(core::Errc::invalid_argument, "parameter {} is {}; parameters are f32, bf16 or f16",
                        spec.name, core::name_of(spec.dtype));
    }
    TRY(check_gather_dtype(spec));
    TRY(spec.stored_parts());
    names.push_back(spec.name);
  }
  if (std::none_of(specs.begin(), specs.end(), [](const auto& spec) { return spec.trainable; })) {
    return core::fail(core::Errc::invalid_argument,
                      "all {} parameters are frozen; a job trains at least one (ParameterSpec::trainable)",
                      specs.size());
  }
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return core::fail(core::Errc::invalid_argument, "two parameters are called {}; names must differ",
                      *twice);
  }
  return {};
}

}  // namespace troupe::actors
