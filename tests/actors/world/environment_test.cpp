#include "actors/world/environment.hpp"

#include <gtest/gtest.h>

#include <map>

namespace troupe::actors {
namespace {

Variables variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(JobEnvironment, IsOneRankWhenNobodyLaunchedIt) {
  auto environment = detect_environment(variables({}));

  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->world.value, 1);
  EXPECT_EQ(environment->launcher, "none");
}

TEST(JobEnvironment, UnderstandsTorchrun) {
  auto environment = detect_environment(variables({{"RANK", "3"},
                                                   {"WORLD_SIZE", "4"},
                                                   {"LOCAL_RANK", "1"},
                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                   {"MASTER_ADDR", "node0"},
                                                   {"MASTER_PORT", "29500"},
                                                   {"TORCHELASTIC_RUN_ID", "a.b"},
                                                   {"TORCHELASTIC_RESTART_COUNT", "2"}}));

  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->launcher, "torchrun");
  EXPECT_EQ(environment->rank.value, 3);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->control_host, "node0");
  EXPECT_EQ(environment->control_port, 29500);
  EXPECT_EQ(environment->job, "a_b");
  EXPECT_EQ(environment->epoch.value, 3u);
}

TEST(JobEnvironment, PrefersItsOwnControlAddressAndGeneration) {
  auto environment = detect_environment(variables({{"RANK", "0"},
                                                   {"WORLD_SIZE", "2"},
                                                   {"MASTER_PORT", "29500"},
                                                   {"TROUPE_JOB_ID", "job-1"},
                                                   {"TROUPE_GENERATION", "4"},
                                                   {"TROUPE_CONTROL_ADDR", "127.0.0.1:4711"}}));

  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->launcher, "troupe");
  EXPECT_EQ(environment->control_port, 4711);
  EXPECT_EQ(environment->epoch.value, 5u);
}

TEST(JobEnvironment, UnderstandsOpenMpiAndSlurm) {
  auto mpi = detect_environment(
      variables({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}}));
  auto slurm = detect_environment(variables(
      {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"MASTER_PORT", "1234"}}));

  ASSERT_TRUE(mpi);
  ASSERT_TRUE(slurm);
  EXPECT_EQ(mpi->rank.value, 1);
  EXPECT_EQ(slurm->rank.value, 5);
  EXPECT_EQ(slurm->local_rank, 1);
}

TEST(JobEnvironment, NamesTheVariableThatIsWrong) {
  auto rank = detect_environment(variables({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "1"}}));
  auto world = detect_environment(variables({{"RANK", "0"}}));
  auto port = detect_environment(variables({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));

  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().message, "RANK: expected a whole number from 0 to 3, found \"4\"");
  ASSERT_FALSE(world);
  EXPECT_NE(world.error().message.find("WORLD_SIZE is not"), std::string::npos);
  ASSERT_FALSE(port);
  EXPECT_NE(port.error().message.find("MASTER_PORT"), std::string::npos);
}

}  // namespace
}  // namespace troupe::actors
