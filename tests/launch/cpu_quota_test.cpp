#include "apps/troupe/host/cpu_quota.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/launch/running_launcher.hpp"

namespace troupe::apps {
namespace {

struct Machine {
  const char* what;
  std::map<std::string, std::string> files;
  std::optional<double> quota;
};

TEST(CpuQuota, IsTheLeastOfTheEnclosingControlGroups) {
  const std::string v1 = "5:memory:/m\n4:cpu,cpuacct:/a/b\n";
  const std::vector<Machine> machines{
      {"no control groups", {}, std::nullopt},
      {"version 2, without a limit",
       {{"proc/self/cgroup", "0::/user\n"}, {"sys/fs/cgroup/user/cpu.max", "max 100000\n"}},
       std::nullopt},
      {"version 2, its own limit",
       {{"proc/self/cgroup", "0::/user/job\n"}, {"sys/fs/cgroup/user/job/cpu.max", "150000 100000\n"}},
       1.5},
      {"version 2, a limit around it",
       {{"proc/self/cgroup", "0::/user/job\n"},
        {"sys/fs/cgroup/user/cpu.max", "50000 100000\n"},
        {"sys/fs/cgroup/user/job/cpu.max", "200000 100000\n"}},
       0.5},
      {"version 2, a container",
       {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "400000 100000\n"}},
       4},
      {"version 2, a container that sees the host's path",
       {{"proc/self/cgroup", "0::/docker/abc\n"}, {"sys/fs/cgroup/cpu.max", "400000 100000\n"}},
       4},
      {"version 1, its own limit",
       {{"proc/self/cgroup", v1},
        {"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "300000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"}},
       3},
      {"version 1, a container that sees the host's path",
       {{"proc/self/cgroup", v1},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
       2},
      {"version 1, without a limit",
       {{"proc/self/cgroup", v1},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
       std::nullopt}};
  for (const Machine& machine : machines) {
    const TemporaryDirectory root;
    for (const auto& [name, text] : machine.files) {
      std::filesystem::create_directories((root.path() / name).parent_path());
      std::ofstream(root.path() / name) << text;
    }

    EXPECT_EQ(cpu_quota(root.path()), machine.quota) << machine.what;
  }
}

}  // namespace
}  // namespace troupe::apps
