#include "actors/world/environment.hpp"

#include "actors/world/engine.hpp"

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

using Values = std::map<std::string, std::string>;

/// A rank of two nodes with two ranks each, as its engine describes it.
struct EngineCase {
  const char* name;
  Values (*rank)(int rank);
  const char* launcher;

  friend std::ostream& operator<<(std::ostream& out, const EngineCase& of) { return out << of.name; }
};

std::string text(int number) {
  return std::to_string(number);
}

Values slurm_step(int rank) {
  return {{"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", text(rank)},
          {"SLURM_NTASKS", "4"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_NODEID", text(rank / 2)},
          {"SLURM_LOCALID", text(rank % 2)},
          {"SLURM_NNODES", "2"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
}

Values with_pmi(Values values, int rank) {
  values.merge(Values{{"PMI_RANK", text(rank)}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}});
  return values;
}

Values with_master(Values values) {
  values.merge(Values{{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1234"}});
  return values;
}

class EngineOfTwoNodes : public ::testing::TestWithParam<EngineCase> {};

TEST_P(EngineOfTwoNodes, SaysWhichRanksShareAHost) {
  for (int rank = 0; rank < 4; ++rank) {
    const auto environment = detect_environment(variables(with_master(GetParam().rank(rank))));

    ASSERT_TRUE(environment) << environment.error().message;
    EXPECT_EQ(environment->launcher, GetParam().launcher);
    EXPECT_EQ(environment->rank.value, rank);
    EXPECT_EQ(environment->world.value, 4);
    EXPECT_EQ(environment->local_rank, rank % 2);
    EXPECT_EQ(environment->local_world, 2);
    EXPECT_FALSE(engine_facts(variables(GetParam().rank(rank))).local_source.empty());
    EXPECT_EQ(environment->control_host, "n1");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, EngineOfTwoNodes,
    ::testing::Values(
        EngineCase{"Torchrun",
                   [](int rank) {
                     return Values{{"RANK", text(rank)},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_RANK", text(rank % 2)},
                                   {"LOCAL_WORLD_SIZE", "2"}};
                   },
                   "torchrun"},
        EngineCase{"OpenMpi",
                   [](int rank) {
                     return Values{{"OMPI_COMM_WORLD_RANK", text(rank)},
                                   {"OMPI_COMM_WORLD_SIZE", "4"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", text(rank % 2)},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
                   },
                   "Open MPI"},
        EngineCase{"Slurm", slurm_step, "Slurm"},
        EngineCase{"SlurmWithPmi2", [](int rank) { return with_pmi(slurm_step(rank), rank); }, "Slurm"},
        EngineCase{"Flux",
                   [](int rank) {
                     return with_pmi({{"FLUX_JOB_ID", "f1"},
                                      {"FLUX_JOB_SIZE", "4"},
                                      {"FLUX_JOB_NNODES", "2"},
                                      {"FLUX_TASK_RANK", text(rank)},
                                      {"FLUX_TASK_LOCAL_ID", text(rank % 2)}},
                                     rank);
                   },
                   "Flux"},
        EngineCase{"Hydra",
                   [](int rank) {
                     return with_pmi({{"MPI_LOCALRANKID", text(rank % 2)}, {"MPI_LOCALNRANKS", "2"}}, rank);
                   },
                   "hydra"},
        // hydra starts its own processes on the nodes with srun, one task on each.
        EngineCase{"HydraWithinSlurm",
                   [](int rank) {
                     auto values = slurm_step(rank / 2);
                     values["SLURM_NTASKS"] = values["SLURM_STEP_NUM_TASKS"] = "2";
                     values["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)";
                     values["SLURM_LOCALID"] = "0";
                     values.merge(Values{{"MPI_LOCALRANKID", text(rank % 2)}, {"MPI_LOCALNRANKS", "2"}});
                     return with_pmi(values, rank);
                   },
                   "hydra"},
        EngineCase{"Pals",
                   [](int rank) {
                     return with_pmi({{"PMI_LOCAL_RANK", text(rank % 2)}, {"PMI_LOCAL_SIZE", "2"}}, rank);
                   },
                   "PALS"}),
    testing::PrintToStringParamName());

TEST(JobEnvironment, DividesTheRanksOfFluxOverItsNodes) {
  const int of_node[] = {3, 3, 3, 2, 2};
  for (int rank = 0; rank < 5; ++rank) {
    const auto environment = detect_environment(variables({{"FLUX_JOB_SIZE", "5"},
                                                           {"FLUX_JOB_NNODES", "2"},
                                                           {"FLUX_TASK_RANK", text(rank)},
                                                           {"MASTER_PORT", "1"}}));

    ASSERT_TRUE(environment);
    EXPECT_EQ(environment->local_world, of_node[rank]);
  }
}

TEST(JobEnvironment, DoesNotMistakePmiForSlurmsTask) {
  auto values = slurm_step(0);
  values["SLURM_STEP_NUM_TASKS"] = "1";
  const auto ranks = variables(with_master(with_pmi(values, 3)));
  const auto environment = detect_environment(ranks);

  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->launcher, "PMI");
  EXPECT_EQ(environment->rank.value, 3);
  EXPECT_TRUE(engine_facts(ranks).local_source.empty()) << "nothing says which ranks share a host";
}

TEST(JobEnvironment, IsOneRankInSlurmShellsAndBatchScripts) {
  const Values job{{"SLURM_JOB_ID", "42"}, {"SLURM_PROCID", "0"},        {"SLURM_LOCALID", "0"},
                   {"SLURM_NODEID", "0"},  {"SLURM_NTASKS", "8"},        {"SLURM_NPROCS", "8"},
                   {"SLURM_NNODES", "1"},  {"SLURM_TASKS_PER_NODE", "8"}};
  auto shell = job;
  shell.merge(
      Values{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  auto step_of_eight = job;
  step_of_eight.merge(
      Values{{"SLURM_STEP_ID", "1"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_STEP_TASKS_PER_NODE", "8"}});

  const auto in_shell = detect_environment(variables(shell));
  const auto in_script = detect_environment(variables(job));
  const auto in_step = detect_environment(variables(step_of_eight));

  ASSERT_TRUE(in_shell && in_script && in_step);
  EXPECT_EQ(in_shell->world.value, 1);
  EXPECT_EQ(in_script->world.value, 1);
  EXPECT_EQ(in_step->world.value, 8);
}

TEST(JobEnvironment, FindsWhereRank0ListensFromTheStepOfSlurm) {
  auto one_node = slurm_step(3);
  one_node["SLURM_NNODES"] = "1";
  one_node["SLURM_STEP_TASKS_PER_NODE"] = "4";
  one_node["SLURM_NODEID"] = "0";
  one_node["SLURM_LOCALID"] = "3";
  auto another_step = slurm_step(0);
  another_step["SLURM_STEP_ID"] = "1";
  auto only_port = slurm_step(1);
  only_port["MASTER_PORT"] = "4321";

  const auto first = detect_environment(variables(slurm_step(0)));
  const auto last = detect_environment(variables(slurm_step(3)));
  const auto here = detect_environment(variables(one_node));
  const auto other = detect_environment(variables(another_step));
  const auto chosen = detect_environment(variables(only_port));

  ASSERT_TRUE(first && last && here && other && chosen);
  EXPECT_EQ(first->control_host, "n1");
  EXPECT_EQ(last->control_host, "n1");
  EXPECT_EQ(first->control_port, last->control_port);
  EXPECT_GE(first->control_port, 1024);
  EXPECT_EQ(here->control_host, "127.0.0.1");
  EXPECT_NE(first->control_port, other->control_port);
  EXPECT_NE(first->job, other->job) << "steps of one job are jobs of their own";
  EXPECT_EQ(chosen->control_host, "n1");
  EXPECT_EQ(chosen->control_port, 4321);
}

TEST(JobEnvironment, CountsTheRestartsOfItsEngine) {
  auto requeued = slurm_step(0);
  requeued["SLURM_RESTART_COUNT"] = "2";
  auto launched = requeued;
  launched["TROUPE_GENERATION"] = "0";

  const auto by_slurm = detect_environment(variables(requeued));
  const auto by_launcher = detect_environment(variables(launched));

  ASSERT_TRUE(by_slurm && by_launcher);
  EXPECT_EQ(by_slurm->epoch.value, 3U);
  EXPECT_EQ(by_launcher->epoch.value, 1U);
}

TEST(JobEnvironment, LeavesThePortOfTorchrunsAgentToTheAgent) {
  const Values rank{{"RANK", "0"},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "n1"},
                    {"MASTER_PORT", "29500"},
                    {"LOCAL_RANK", "0"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"TORCHELASTIC_RUN_ID", "none"},
                    {"TORCHELASTIC_RESTART_COUNT", "1"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  auto without = rank;
  without["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  auto elsewhere = rank;
  elsewhere["MASTER_PORT"] = "29501";
  auto told = rank;
  told["TROUPE_CONTROL_ADDR"] = "[::1]:4711";

  const auto agent = detect_environment(variables(rank));
  const auto other = detect_environment(variables(elsewhere));
  const auto chosen = detect_environment(variables(told));

  ASSERT_TRUE(agent && other && chosen);
  EXPECT_EQ(engine_facts(variables(rank)).agent_key, "/troupe/none/1");
  EXPECT_EQ(agent->control_port, 29500);
  EXPECT_EQ(engine_facts(variables(without)).agent_key, "");
  EXPECT_NE(agent->job, other->job) << "torchrun calls both jobs \"none\"";
  EXPECT_EQ(engine_facts(variables(told)).agent_key, "");
  EXPECT_EQ(chosen->control_host, "::1");
  EXPECT_EQ(chosen->control_port, 4711);
}

TEST(JobEnvironment, TakesAddressesOfIpv6) {
  const Values rank{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};
  const std::map<std::string, std::string> hosts{{"::1", "::1"},
                                                 {"[::1]", "::1"},
                                                 {"fe80::1%eth0", "fe80::1%eth0"},
                                                 {"[2001:db8::7]", "2001:db8::7"},
                                                 {"node0", "node0"}};
  for (const auto& [given, meant] : hosts) {
    auto values = rank;
    values["MASTER_ADDR"] = given;
    const auto environment = detect_environment(variables(values));

    ASSERT_TRUE(environment) << given;
    EXPECT_EQ(environment->control_host, meant);
  }
  for (const char* given : {"[::1", "::1]", "node0:29500", "[node0]", "1:2:3"}) {
    auto values = rank;
    values["MASTER_ADDR"] = given;
    const auto environment = detect_environment(variables(values));

    ASSERT_FALSE(environment) << given;
    EXPECT_NE(environment.error().message.find("MASTER_ADDR"), std::string::npos);
  }
  for (const char* given : {"::1", "[::1]", "[::1]:0", ":4711", "host", "host:65536"}) {
    auto values = rank;
    values["TROUPE_CONTROL_ADDR"] = given;
    const auto environment = detect_environment(variables(values));

    ASSERT_FALSE(environment) << given;
    EXPECT_NE(environment.error().message.find("TROUPE_CONTROL_ADDR"), std::string::npos);
  }
}

TEST(JobEnvironment, GivesEveryJobANameOfBoundedLength) {
  const auto named = [](const std::string& id) {
    return detect_environment(
        variables({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"TORCHELASTIC_RUN_ID", id}}));
  };
  const std::string longest(300, 'a');

  const auto one = named(longest + "1");
  const auto other = named(longest + "2");
  const auto none = named("");

  ASSERT_TRUE(one && other && none);
  EXPECT_LE(one->job.size(), 64U);
  EXPECT_NE(one->job, other->job);
  EXPECT_FALSE(none->job.empty());
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

TEST(JobEnvironment, TellsRanksWithOwnGpusFromRanksSharingThem) {
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

TEST(JobEnvironment, KnowsAKeptProcessByItsSlot) {
  const auto kept = detect_environment(variables({{"RANK", "4"},
                                                  {"WORLD_SIZE", "5"},
                                                  {"LOCAL_RANK", "1"},
                                                  {"LOCAL_WORLD_SIZE", "2"},
                                                  {"TROUPE_SLOT", "7"},
                                                  {"TROUPE_LOCAL_SLOT", "3"},
                                                  {"TROUPE_LOCAL_RANKS", "4"},
                                                  {"MASTER_PORT", "1"}}));

  ASSERT_TRUE(kept) << kept.error().message;
  EXPECT_EQ(kept->local_rank, 1);
  EXPECT_EQ(slot_of(*kept).number, 7);
  EXPECT_EQ(slot_of(*kept).of_host, 3);
  EXPECT_TRUE(ranks_share_gpus(*kept, 3)) << "as they did when there were four";
  EXPECT_FALSE(ranks_share_gpus(*kept, 4));
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
