#pragma once

#include <string_view>
#include <vector>

#include "core/options/option_value.hpp"
#include "core/options/options.hpp"

namespace troupe::core {

/// An option that has one name, one meaning and the same bounds in every program: the C interface takes the
/// name as it is, command lines behind "--".
struct CommonOption {
  std::string_view name;
  std::string_view help;
  OptionValue value;  ///< its default is that of the target
};

/// The options of training. `training` must outlive them.
std::vector<CommonOption> common_options(TrainingOptions& training);
/// The options that groups of parameters have.
std::vector<CommonOption> common_options(ParameterGroup& group);

/// The option of this name, which must be one of `all`.
const CommonOption& option_named(const std::vector<CommonOption>& all, std::string_view name);

}  // namespace troupe::core
