#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apps/files/source.hpp"
#include "core/boxes/box.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::apps {

/// The members of each group of an optimizer, from its "param_groups": names, or numbers.
using ParameterGroups = std::vector<std::vector<core::Value>>;
/// Those at a path such as "optim."; empty when they are not kept there.
ParameterGroups parameter_groups(const core::Value& common, const std::string& optimizer);

/// Which tensors an optimizer numbered: in the order in which the files list the model's floating tensors.
/// Where there are several groups, the shapes of moments must say to which of them each tensor belongs. Tied
/// tensors count once. `shapes` has the shapes of moments, by number. Errc::invalid_argument says why it
/// cannot be known.
core::Result<std::map<std::int64_t, std::string>> numbered_parameters(
    const Source& source, const ParameterGroups& groups, const std::map<std::int64_t, core::Shape>& shapes);

}  // namespace troupe::apps
