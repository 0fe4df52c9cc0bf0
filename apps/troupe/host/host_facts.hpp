#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

/// Cores this process may run on: no more than a container's quota of processor time pays for, but one.
int usable_cores();
/// The cores of each NUMA node that this process may run on.
std::vector<std::vector<int>> numa_nodes();

/// How many processes the out-of-memory killer has ended, in our cgroup and on the whole machine.
struct OomKills {
  std::optional<std::uint64_t> in_cgroup;
  std::optional<std::uint64_t> on_machine;
};
OomKills oom_kills();

std::string host_name();

}  // namespace troupe::apps
