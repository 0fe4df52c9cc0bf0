#pragma once

#include <cstdint>

namespace troupe::actors {

/// What runs the actors of a stage.
enum class SchedulerPolicy : std::uint8_t {
  sharing,  ///< production: one queue, no polling
  testing,  ///< CAF's deterministic test scheduler, without threads (before 1.0 only)
};

}  // namespace troupe::actors
