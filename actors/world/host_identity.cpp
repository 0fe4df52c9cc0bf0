#include "actors/world/host_identity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/hash.hpp"

namespace troupe::actors {

namespace {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

/// Identifies a namespace, or what is mounted at a path.
std::string identity_of(const char* path) {
  struct stat found {};
  return ::stat(path, &found) == 0 ? fmt::format("{}:{}", found.st_dev, found.st_ino) : std::string();
}

}  // namespace

HostIdentity host_identity() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const auto text = fmt::format("{}|{}|{}|{}|{}", boot_id(), name.data(), identity_of("/proc/self/ns/net"),
                                identity_of("/proc/self/ns/pid"), identity_of("/dev/shm"));
  return {name.data(), std::max<std::uint64_t>(1, core::hash64(text))};
}

}  // namespace troupe::actors
