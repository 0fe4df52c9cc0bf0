#include "posix/entropy.hpp"

#include <fmt/format.h>

#include <random>

namespace troupe::posix {

std::uint64_t entropy() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

std::string unique_name() {
  return fmt::format("{:016x}", entropy());
}

}  // namespace troupe::posix
