#include "apps/troupe/host/host_facts.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "apps/troupe/host/cpu_quota.hpp"
#include "posix/host_memory.hpp"

namespace troupe::apps {

namespace {

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
    const std::string list =
        posix::first_line("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
    if (list.empty()) return nodes;
    std::vector<int> cpus = parse_cpu_list(list);
    std::erase_if(cpus, [&](int cpu) { return !CPU_ISSET(cpu, &allowed); });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
}

OomKills oom_kills() {
  OomKills kills;
  const std::string cgroup = posix::memory_cgroup();
  if (!cgroup.empty()) {
    kills.in_cgroup = posix::value_in_file(cgroup + "/memory.events", "oom_kill");
    if (!kills.in_cgroup) kills.in_cgroup = posix::value_in_file(cgroup + "/memory.oom_control", "oom_kill");
  }
  kills.on_machine = posix::value_in_file("/proc/vmstat", "oom_kill");
  return kills;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace troupe::apps
