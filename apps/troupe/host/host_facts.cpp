#include "apps/troupe/host/host_facts.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "apps/troupe/host/cpu_quota.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

namespace {

std::optional<std::uint64_t> to_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// Our folder in the unified (v2) hierarchy, or in the memory controller's of version 1; empty without.
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

/// "0-3,8" as numbers.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const int first = std::atoi(part.c_str());
    const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
    for (int cpu = first; cpu <= last && !part.empty(); ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int cores = std::max(1, CPU_COUNT(&set));
  const auto quota = cpu_quota();
  return quota && *quota < cores ? std::max(1, static_cast<int>(*quota)) : cores;
}

std::vector<std::vector<int>> numa_nodes() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<std::vector<int>> nodes;
  for (int node = 0;; ++node) {
    const std::string list = first_line("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
    if (list.empty()) return nodes;
    std::vector<int> cpus = parse_cpu_list(list);
    std::erase_if(cpus, [&](int cpu) { return !CPU_ISSET(cpu, &allowed); });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
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

OomKills oom_kills() {
  OomKills kills;
  const std::string cgroup = memory_cgroup();
  if (!cgroup.empty()) {
    kills.in_cgroup = value_in_file(cgroup + "/memory.events", "oom_kill");
    if (!kills.in_cgroup) kills.in_cgroup = value_in_file(cgroup + "/memory.oom_control", "oom_kill");
  }
  kills.on_machine = value_in_file("/proc/vmstat", "oom_kill");
  return kills;
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

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace troupe::apps
