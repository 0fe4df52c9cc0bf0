#pragma once

#include <cstdint>

namespace troupe::core {

/// What a rank asks of all ranks at the end of a step; all learn of it in the same one.
enum Wish : std::uint32_t {
  kWishSave = 1,   ///< save a checkpoint after this step
  kWishLeave = 2,  ///< end the run after this step
};

}  // namespace troupe::core
