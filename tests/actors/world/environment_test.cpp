#include "actors/world/environment.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

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

std::map<std::string, std::string> slurm_task(std::map<std::string, std::string> more) {
  std::map<std::string, std::string> values{{"SLURM_PROCID", "9"},
                                            {"SLURM_NTASKS", "20"},
                                            {"SLURM_LOCALID", "1"},
                                            {"MASTER_ADDR", "node0"},
                                            {"MASTER_PORT", "1234"}};
  values.merge(more);
  return values;
}

struct SlurmCase {
  const char* name;
  std::map<std::string, std::string> variables;
  int local_world;

  friend std::ostream& operator<<(std::ostream& out, const SlurmCase& of) { return out << of.name; }
};

class SlurmNode : public ::testing::TestWithParam<SlurmCase> {};

TEST_P(SlurmNode, HasAsManyRanksAsSlurmSays) {
  auto environment = detect_environment(variables(slurm_task(GetParam().variables)));

  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->launcher, "Slurm");
  EXPECT_EQ(environment->local_world, GetParam().local_world);
}

INSTANTIATE_TEST_SUITE_P(
    Lists, SlurmNode,
    ::testing::Values(
        SlurmCase{"OfTheStep",
                  {{"SLURM_NNODES", "3"}, {"SLURM_NODEID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}},
                  8},
        SlurmCase{"LastNode",
                  {{"SLURM_NNODES", "3"}, {"SLURM_NODEID", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}},
                  4},
        SlurmCase{
            "OfTheJob", {{"SLURM_NNODES", "3"}, {"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "7,6,7"}}, 7},
        SlurmCase{"StepBeforeRequest",
                  {{"SLURM_NNODES", "3"},
                   {"SLURM_NODEID", "2"},
                   {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"},
                   {"SLURM_NTASKS_PER_NODE", "8"}},
                  4},
        SlurmCase{"OnlyRequest", {{"SLURM_NNODES", "2"}, {"SLURM_NTASKS_PER_NODE", "10"}}, 10},
        SlurmCase{"OneNode", {{"SLURM_NNODES", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "20"}}, 20},
        SlurmCase{"OneNodeWithoutList", {{"SLURM_NNODES", "1"}}, 20}),
    testing::PrintToStringParamName());

TEST(JobEnvironment, DoesNotTakeSeveralNodesOfSlurmForOne) {
  auto silent = detect_environment(variables(slurm_task({{"SLURM_NNODES", "2"}})));
  auto beyond = detect_environment(
      variables(slurm_task({{"SLURM_NODEID", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "10(x2)"}})));
  auto nowhere = detect_environment(variables(slurm_task({{"SLURM_STEP_TASKS_PER_NODE", "10(x2)"}})));

  ASSERT_FALSE(silent);
  EXPECT_EQ(silent.error().code, core::Errc::invalid_argument);
  EXPECT_NE(silent.error().message.find("SLURM_NNODES is 2"), std::string::npos) << silent.error().message;
  EXPECT_NE(silent.error().message.find("SLURM_NTASKS_PER_NODE"), std::string::npos);
  ASSERT_FALSE(beyond);
  EXPECT_NE(beyond.error().message.find("SLURM_STEP_TASKS_PER_NODE"), std::string::npos);
  ASSERT_FALSE(nowhere);
  EXPECT_NE(nowhere.error().message.find("SLURM_NODEID"), std::string::npos);
}

TEST(JobEnvironment, RefusesAListOfSlurmsThatDoesNotReadAsOne) {
  for (const char* list : {"8(2),4", "8(x2,4", "(x2)", "8(x0)", "eight", "8(x2)4", ",8"}) {
    auto environment = detect_environment(
        variables(slurm_task({{"SLURM_NODEID", "2"}, {"SLURM_STEP_TASKS_PER_NODE", list}})));

    ASSERT_FALSE(environment) << list;
    EXPECT_NE(environment.error().message.find("SLURM_STEP_TASKS_PER_NODE"), std::string::npos) << list;
  }
}

TEST(JobEnvironment, KnowsRanksThatSeeOneGpuEachFromThoseThatShareIt) {
  const std::map<std::string, std::string> torchrun{
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_PORT", "1"}};
  auto narrowed = torchrun;
  narrowed["TROUPE_OWN_GPUS"] = "1";
  auto wrong = torchrun;
  wrong["TROUPE_OWN_GPUS"] = "yes";

  const auto shared = detect_environment(variables(torchrun));
  const auto own = detect_environment(variables(narrowed));
  const auto by_slurm = detect_environment(variables(slurm_task({{"SLURM_GPUS_PER_TASK", "1"}})));
  const auto within_slurm = detect_environment(
      variables(slurm_task({{"SLURM_GPUS_PER_TASK", "4"}, {"RANK", "3"}, {"WORLD_SIZE", "8"}})));
  const auto refused = detect_environment(variables(wrong));

  ASSERT_TRUE(shared && own && by_slurm && within_slurm);
  EXPECT_TRUE(ranks_share_gpus(*shared, 1));
  EXPECT_FALSE(ranks_share_gpus(*shared, 4));
  EXPECT_FALSE(ranks_share_gpus(*own, 1));
  EXPECT_FALSE(ranks_share_gpus(*by_slurm, 1));
  EXPECT_TRUE(ranks_share_gpus(*within_slurm, 4))
      << "the GPUs of a task are those of all ranks started in it";
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("TROUPE_OWN_GPUS"), std::string::npos);
}

TEST(JobEnvironment, TellsHowManyGpusCudaWillShow) {
  const auto shown = [](const char* chosen) {
    return visible_gpus(variables({{"CUDA_VISIBLE_DEVICES", chosen}}));
  };

  EXPECT_EQ(shown(""), 0);
  EXPECT_EQ(shown("-1"), 0);
  EXPECT_EQ(shown("3"), 1);
  EXPECT_EQ(shown("0,5,7"), 3);
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
