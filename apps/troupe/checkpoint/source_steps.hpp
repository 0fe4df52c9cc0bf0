#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/files/source.hpp"

namespace troupe::apps {

/// How many steps were done, and what says so.
struct StepsSaid {
  std::int64_t steps = 0;
  std::string where;
};

/// What files of PyTorch say of themselves: an integer, or a scalar tensor of one, called step, global_step,
/// iteration and the like, at the top of the state or in a container there that is not an optimizer. Nothing:
/// none does, or several do and contradict each other, which is noted.
std::optional<StepsSaid> steps_said_by(Source& source);

}  // namespace troupe::apps
