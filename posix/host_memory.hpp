#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::posix {

struct MemoryFacts {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  ///< by the kernel's estimate and the cgroup's limit
  std::optional<std::uint64_t> cgroup_limit_bytes;
};
MemoryFacts memory_facts();

/// This process's folder in the unified (v2) hierarchy, or in the memory controller's of version 1; empty
/// without.
std::string memory_cgroup();

/// The value of "key value" or "key: value" in a file of such lines.
std::optional<std::uint64_t> value_in_file(const std::string& path, const std::string& key);
/// The file's first line, empty if there is none.
std::string first_line(const std::string& path);

}  // namespace troupe::posix
