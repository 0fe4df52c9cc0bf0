#include "actors/world/slurm.hpp"

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

TEST(Slurm, NamesTheFirstHostOfAList) {
  const std::map<std::string, std::string> lists{{"n1", "n1"},
                                                 {"n1,n2", "n1"},
                                                 {"n[1-2]", "n1"},
                                                 {"gpu-[003-005,009],x1", "gpu-003"},
                                                 {"rack[1-2]-node[07,09]", "rack1-node07"},
                                                 {"a[3]b", "a3b"}};
  for (const auto& [list, first] : lists) {
    const auto host = slurm::first_host(list);

    ASSERT_TRUE(host) << list;
    EXPECT_EQ(*host, first);
  }
  for (const char* list : {"", ",n1", "n[1-2", "n[]", "n["}) EXPECT_FALSE(slurm::first_host(list)) << list;
}

TEST(JobEnvironment, RefusesASlurmListItCannotRead) {
  for (const char* list : {"8(2),4", "8(x2,4", "(x2)", "8(x0)", "eight", "8(x2)4", ",8"}) {
    auto environment = detect_environment(
        variables(slurm_task({{"SLURM_NODEID", "2"}, {"SLURM_STEP_TASKS_PER_NODE", list}})));

    ASSERT_FALSE(environment) << list;
    EXPECT_NE(environment.error().message.find("SLURM_STEP_TASKS_PER_NODE"), std::string::npos) << list;
  }
}

}  // namespace
}  // namespace troupe::actors
