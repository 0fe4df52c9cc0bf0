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

struct MemoryFacts {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  ///< by the kernel's estimate and the cgroup's limit
  std::optional<std::uint64_t> cgroup_limit_bytes;
};
MemoryFacts memory_facts();

/// How many processes the out-of-memory killer has ended, in our cgroup and on the whole machine.
struct OomKills {
  std::optional<std::uint64_t> in_cgroup;
  std::optional<std::uint64_t> on_machine;
};
OomKills oom_kills();

/// The value of "key value" or "key: value" in a file of such lines.
std::optional<std::uint64_t> value_in_file(const std::string& path, const std::string& key);
/// The file's first line, empty if there is none.
std::string first_line(const std::string& path);
std::string host_name();

}  // namespace troupe::apps
