#pragma once

#include <cstdint>

namespace troupe {

/// What this program has allocated. Everything runs in one thread.
struct Counted {
  std::uint64_t allocations = 0;
  std::uint64_t allocated = 0;  ///< bytes of all of them, those that are no longer in use included
  std::uint64_t bytes = 0;      ///< in use
  std::uint64_t most = 0;       ///< that were in use at once
};
extern Counted counted;

}  // namespace troupe
