#include "gpu/collective/nccl/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace troupe::gpu {
namespace {

LookUpVariable from(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(NcclEnvironment, SetsTheOrderOfLaunchesAndThreadNames) {
  EXPECT_EQ(nccl_environment(from({})),
            (EnvironmentVariables{{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}, {"NCCL_SET_THREAD_NAME", "1"}}));
}

TEST(NcclEnvironment, LeavesWhatTheUserSet) {
  EXPECT_EQ(nccl_environment(from({{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}})),
            (EnvironmentVariables{{"NCCL_SET_THREAD_NAME", "1"}}));
}

TEST(NcclEnvironment, TellsOfVariablesThatOverrideTroupe) {
  EXPECT_THAT(nccl_overrides(from({{"NCCL_DEBUG", "INFO"}})), ::testing::IsEmpty());
  EXPECT_THAT(
      nccl_overrides(from({{"NCCL_COMM_BLOCKING", "1"},
                           {"NCCL_LEGACY_CUDA_REGISTER", "1"},
                           {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}})),
      ::testing::ElementsAre(::testing::HasSubstr("NCCL_COMM_BLOCKING=1 is set: calls may block for ever"),
                             ::testing::HasSubstr("NCCL_LEGACY_CUDA_REGISTER=1 is set"),
                             ::testing::HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT=0 is set")));
}

TEST(NcclEnvironment, OfRanksOnOneGpuDiffersByHostOnly) {
  auto first = several_ranks_on_one_gpu(0);
  auto second = several_ranks_on_one_gpu(1);
  ASSERT_FALSE(first.empty());
  ASSERT_FALSE(second.empty());
  EXPECT_EQ(first.front(), (std::pair<std::string, std::string>{"NCCL_HOSTID", "troupe-host-0"}));
  EXPECT_EQ(second.front(), (std::pair<std::string, std::string>{"NCCL_HOSTID", "troupe-host-1"}));
  first.erase(first.begin());
  second.erase(second.begin());

  EXPECT_EQ(first, second);
  const std::map<std::string, std::string> all(first.begin(), first.end());
  EXPECT_EQ(all.size(), first.size()) << "each variable once";
  EXPECT_EQ(all.at("NCCL_SOCKET_IFNAME"), "=lo") << "exactly the loopback interface";
  EXPECT_EQ(all.at("NCCL_P2P_DISABLE") + all.at("NCCL_SHM_DISABLE") + all.at("NCCL_NVLS_ENABLE"), "110");
  EXPECT_EQ(all.count("NCCL_DEBUG_FILE"), 0U);
}

TEST(NcclEnvironment, OfRanksOnOneGpuNamesEachRanksLog) {
  const auto variables = several_ranks_on_one_gpu(3, "logs");

  ASSERT_FALSE(variables.empty());
  EXPECT_EQ(variables.back().second, "logs/nccl.rank3.%h.%p.log");
}

}  // namespace
}  // namespace troupe::gpu
