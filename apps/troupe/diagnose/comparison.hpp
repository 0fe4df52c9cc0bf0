#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/troupe/diagnose/diagnosis.hpp"
#include "apps/troupe/diagnose/waits.hpp"
#include "core/ids.hpp"

namespace troupe::apps {

/// Operations that members of a group have posted at the same place, and that do not fit together.
struct Difference {
  std::vector<core::Rank> odd;  ///< those that differ from most, or all if there is no majority
  std::string group;
  gpu::RecordedOperation operation;  ///< as most posted it
  std::string sentence;
};

/// The one that was posted first.
std::optional<Difference> find_difference(const Evidence& evidence, const Times& times);

}  // namespace troupe::apps
