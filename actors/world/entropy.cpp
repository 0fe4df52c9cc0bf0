#include "actors/world/entropy.hpp"

#include <random>

namespace troupe::actors {

std::uint64_t entropy() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace troupe::actors
