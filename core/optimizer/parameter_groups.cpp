#include "core/optimizer/parameter_groups.hpp"

#include <fmt/ranges.h>

#include <cmath>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

Result<GroupSettings> settings_of(const ParameterGroup& group, std::size_t index) {
  GroupSettings settings{group.learning_rate_factor, settings_of(group.optimizer)};
  if (!std::isfinite(group.learning_rate_factor) || group.learning_rate_factor < 0) {
    return fail(Errc::invalid_argument,
                "the learning rate factor of parameter group {} is {}; expected 0 or a finite number above",
                index, group.learning_rate_factor);
  }
  if (auto checked = check(settings.optimizer); !checked) {
    return fail(checked.error().code, "parameter group {}: {}", index, checked.error().message);
  }
  return settings;
}

Result<void> check_member(const ParameterSpec& parameter, std::span<const GroupSettings> groups) {
  if (parameter.group >= groups.size()) {
    return fail(Errc::invalid_argument,
                "parameter {} is in group {}, but there are {} groups, counted from 0; add the group to "
                "TrainingOptions::groups, or choose another",
                parameter.name, parameter.group, groups.size());
  }
  const auto& traits = traits_of(groups[parameter.group].optimizer.kind);
  if (traits.takes_matrices_only() && parameter.shape.size() != 2) {
    return fail(Errc::invalid_argument,
                "{} steps matrices, which have two dimensions, but parameter {} of group {} has the shape "
                "[{}]; put it into a group with another optimizer, such as adamw",
                traits.name, parameter.name, parameter.group, fmt::join(parameter.shape, ", "));
  }
  return {};
}

}  // namespace

Result<std::vector<GroupSettings>> parameter_groups(const TrainingOptions& options,
                                                    std::span<const ParameterSpec> parameters) {
  std::vector<GroupSettings> groups;
  for (const auto& group : options.groups) groups.push_back(TRY(settings_of(group, groups.size())));
  if (groups.empty()) groups.push_back(TRY(settings_of({1, options.optimizer}, 0)));
  for (const auto& parameter : parameters) TRY(check_member(parameter, groups));
  return groups;
}

}  // namespace troupe::core
