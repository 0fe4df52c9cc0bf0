#include "apps/troupe/host/cpu_quota.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace troupe::apps {

namespace fs = std::filesystem;

namespace {

/// Version 2 has "150000 100000", or "max 100000".
std::optional<double> read_unified(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// In version 1 a quota of -1 means none.
std::optional<double> read_controller(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

using Read = std::optional<double> (*)(const fs::path& group);

/// The least of the group at `path` below the mount and those around it. In a container the path may be the
/// host's, of which only the end is there: at the mount itself.
std::optional<double> least_of(const fs::path& mount, const std::string& path, Read read) {
  std::optional<double> least = read(mount);
  fs::path group = mount;
  for (const fs::path& part : fs::path(path).relative_path()) {
    group /= part;
    const auto found = read(group);
    if (found) least = std::min(least.value_or(*found), *found);
  }
  return least;
}

/// Whether "cpu" is among "cpu,cpuacct".
bool names_cpu(const std::string& controllers) {
  return (',' + controllers + ',').find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  std::optional<double> least;
  const auto take = [&](std::optional<double> found) {
    if (found) least = std::min(least.value_or(*found), *found);
  };
  // Each line is <number>:<controllers>:<path>; version 2 has no controllers.
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& mount : {mounts, mounts / "unified"}) take(least_of(mount, path, read_unified));
    } else if (names_cpu(controllers)) {
      for (const fs::path& mount : {mounts / controllers, mounts / "cpu"})
        take(least_of(mount, path, read_controller));
    }
  }
  return least;
}

}  // namespace troupe::apps
