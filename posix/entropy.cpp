#include "posix/entropy.hpp"

#include <random>

namespace troupe::posix {

std::uint64_t entropy() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace troupe::posix
