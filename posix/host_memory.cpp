#include "posix/host_memory.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace troupe::posix {

namespace fs = std::filesystem;

namespace {

std::optional<std::uint64_t> to_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

}  // namespace

std::string memory_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.rfind(':');
    if (line.starts_with("0::")) {
      const std::string path = "/sys/fs/cgroup" + line.substr(3);
      if (fs::exists(path + "/memory.events")) return path;
    } else if (line.find(":memory:") != std::string::npos) {
      const std::string path = "/sys/fs/cgroup/memory" + line.substr(colon + 1);
      // In a container the path is the host's, and the folder itself is mounted at the top.
      return fs::exists(path) ? path : "/sys/fs/cgroup/memory";
    }
  }
  return {};
}

MemoryFacts memory_facts() {
  MemoryFacts facts;
  facts.total_bytes = value_in_file("/proc/meminfo", "MemTotal").value_or(0) * 1024;
  facts.available_bytes = value_in_file("/proc/meminfo", "MemAvailable").value_or(0) * 1024;
  const std::string cgroup = memory_cgroup();
  if (cgroup.empty()) return facts;

  const bool unified = fs::exists(cgroup + "/memory.events");
  const auto limit = to_number(first_line(cgroup + (unified ? "/memory.max" : "/memory.limit_in_bytes")));
  const auto used = to_number(first_line(cgroup + (unified ? "/memory.current" : "/memory.usage_in_bytes")));
  // Without a limit version 1 says a huge number and version 2 "max".
  if (!limit || *limit > facts.total_bytes) return facts;
  facts.cgroup_limit_bytes = limit;
  facts.available_bytes = std::min(facts.available_bytes, *limit - std::min(*limit, used.value_or(0)));
  return facts;
}

std::optional<std::uint64_t> value_in_file(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::stringstream words(line);
    std::string name, value;
    words >> name >> value;
    if (name == key || name == key + ":") return to_number(value);
  }
  return std::nullopt;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace troupe::posix
