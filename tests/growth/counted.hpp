#pragma once

#include <cstdint>

namespace troupe {

/// What this program has allocated. Everything runs in one thread.
struct Counted {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0;  ///< in use
  std::uint64_t most = 0;   ///< that were in use at once
};
extern Counted counted;

}  // namespace troupe
