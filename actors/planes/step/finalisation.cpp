#include "actors/planes/step/finalisation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/errors.hpp"
#include "core/program/tensor_class.hpp"

namespace troupe::actors {

namespace {

/// * stands for any characters, ? for one.
bool matches(std::string_view name, std::string_view pattern) {
  std::size_t at = 0, in_pattern = 0;
  std::size_t after_star = std::string_view::npos, tried = 0;
  while (at < name.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      after_star = ++in_pattern;
      tried = at;
    } else if (in_pattern < pattern.size() &&
               (pattern[in_pattern] == '?' || pattern[in_pattern] == name[at])) {
      ++at, ++in_pattern;
    } else if (after_star != std::string_view::npos) {
      in_pattern = after_star;
      at = ++tried;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string_view::npos;
}

core::Result<void> check_patterns(const core::TrainingOptions& options,
                                  std::span<const core::ParameterSpec> specs) {
  if (options.f32_gradients.empty()) return {};
  if (!options.gradients_in_parameter_dtype) {
    return core::fail(
        core::Errc::invalid_argument,
        "all gradients are kept in f32, so none needs to be named for it; leave out f32 gradients "
        "or keep the others in the parameters' dtype");
  }
  for (const auto& pattern : options.f32_gradients) {
    const auto is_named = [&](const core::ParameterSpec& spec) { return matches(spec.name, pattern); };
    if (std::any_of(specs.begin(), specs.end(), is_named)) continue;
    return core::fail(
        core::Errc::invalid_argument,
        "f32 gradients are asked for '{}', which is the name of no parameter, as in '{}'; * stands "
        "for any characters and ? for one",
        pattern, specs.front().name);
  }
  return {};
}

core::Result<void> check_averages(const core::TrainingOptions& options) {
  if (!options.average_in_collective) return {};
  if (options.numerics == core::Numerics::ordered) {
    return core::fail(
        core::Errc::invalid_argument,
        "average in collective is for fast numerics; ordered ones divide once, after the sum over all "
        "lanes");
  }
  if (!options.average) {
    return core::fail(core::Errc::invalid_argument,
                      "gradients are summed, so collectives do not average; leave out average in collective");
  }
  if (options.wire_dtype == core::DType::f32 && options.f32_gradients.empty()) return {};
  return core::fail(
      core::Errc::invalid_argument,
      "gradients that are sent narrower than they are kept are summed by their receivers, not by "
      "a collective; average in collective with wires of the gradients' own dtype");
}

}  // namespace

core::Result<void> check_finalisation(const core::TrainingOptions& options,
                                      std::span<const core::ParameterSpec> specs) {
  if (!(options.large_gradient_factor == 0 || options.large_gradient_factor >= 1)) {
    return core::fail(
        core::Errc::invalid_argument,
        "gradients cannot be called too large from {} times the usual norm; give a factor from 1, or "
        "0 for no check",
        options.large_gradient_factor);
  }
  TRY(check_averages(options));
  return check_patterns(options, specs);
}

std::vector<core::Finish> finish_of(const core::TrainingOptions& options) {
  std::vector<core::Finish> finish{core::Finish::check_finite};
  if (options.clip_norm > 0) finish.push_back(core::Finish::clip);
  if (options.large_gradient_factor > 0) finish.push_back(core::Finish::check_large);
  return finish;
}

core::DType gradient_dtype_of(const core::ParameterSpec& spec, const core::TrainingOptions& options) {
  const auto is_named = [&](const std::string& pattern) { return matches(spec.name, pattern); };
  const bool is_wide = !options.gradients_in_parameter_dtype ||
                       std::any_of(options.f32_gradients.begin(), options.f32_gradients.end(), is_named);
  return is_wide ? core::DType::f32 : spec.dtype;
}

core::DType wire_dtype_of(core::DType parameter, const core::TrainingOptions& options) {
  const auto kept = options.gradients_in_parameter_dtype ? parameter : core::DType::f32;
  return core::sent_dtype(kept, options.wire_dtype);
}

std::string describe_finalisation(const core::TrainingOptions& options) {
  std::string text;
  if (options.average_in_collective) text += "\naverage in collective true";
  if (!options.f32_gradients.empty())
    text += fmt::format("\nf32 gradients {}", fmt::join(options.f32_gradients, ","));
  if (options.large_gradient_factor > 0)
    text += fmt::format("\nlarge gradient factor {}", options.large_gradient_factor);
  return text;
}

}  // namespace troupe::actors
