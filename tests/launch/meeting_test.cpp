#include "apps/troupe/launch/nodes/meeting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace troupe::apps {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, std::string>;

core::Result<Meeting> meet(const LaunchOptions& options, const Values& values) {
  return find_meeting(options, [&](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  });
}

void expect_meeting(const core::Result<Meeting>& found, int nodes, int node, const std::string& host) {
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->nodes, nodes);
  EXPECT_EQ(found->node, node);
  EXPECT_EQ(found->host, host);
}

/// What the second of two nodes sees (`srun -N2 --ntasks-per-node=1`).
const Values kSlurm{{"SLURM_PROCID", "1"},         {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "1"},         {"SLURM_NTASKS", "2"},
                    {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NNODES", "2"},
                    {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                    {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_NODELIST", "n[1-2]"}};

TEST(Meeting, OneNodeMeetsNobody) {
  expect_meeting(meet({}, {}), 1, 0, "");
}

TEST(Meeting, SlurmSaysAll) {
  const auto found = meet({}, kSlurm);
  expect_meeting(found, 2, 1, "n1");
  EXPECT_GT(found->port, 1023);
  EXPECT_EQ(found->engine, "Slurm");
}

TEST(Meeting, FlagsComeBeforeTheEngine) {
  LaunchOptions options;
  options.rdzv_endpoint = "10.0.0.1:1234";
  options.node_rank = 0;
  const auto found = meet(options, kSlurm);
  expect_meeting(found, 2, 0, "10.0.0.1");
  EXPECT_EQ(found->port, 1234);
}

TEST(Meeting, OneNodeWithinAnEngineIsItsOwnJob) {
  LaunchOptions one;
  one.nnodes = "1";
  expect_meeting(meet(one, kSlurm), 1, 0, "");
  LaunchOptions standalone;
  standalone.standalone = true;
  expect_meeting(meet(standalone, kSlurm), 1, 0, "");
}

TEST(Meeting, LaunchersSharingANodeAreRefusedUnlessAskedFor) {
  Values twice = kSlurm;
  twice["SLURM_STEP_TASKS_PER_NODE"] = "2";
  twice["SLURM_NODEID"] = "0";
  const auto found = meet({}, twice);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("srun --ntasks-per-node=1"));

  LaunchOptions options;
  options.nnodes = "2";
  expect_meeting(meet(options, twice), 2, 1, "n1");
}

TEST(Meeting, AnotherNumberThanTheEnginesIsRefused) {
  LaunchOptions options;
  options.nnodes = "4";
  const auto found = meet(options, kSlurm);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("--nnodes 4: Slurm has started 2 launchers"));
}

TEST(Meeting, MpiNeedsAnAddress) {
  Values values{{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const auto found = meet({}, values);
  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message, HasSubstr("--master-addr"));

  values["MASTER_ADDR"] = "n1";
  expect_meeting(meet({}, values), 2, 1, "n1");
  values.erase("MASTER_ADDR");
  LaunchOptions options;
  options.master_addr = "n9";
  expect_meeting(meet(options, values), 2, 1, "n9");
}

TEST(Meeting, ARanksVariablesAreNotALaunchers) {
  expect_meeting(meet({}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_PORT", "1"}}), 1,
                 0, "");
}

TEST(Meeting, PortsAreTorchruns) {
  LaunchOptions options;
  options.nnodes = "2";
  options.master_addr = "n1";
  EXPECT_EQ(meet(options, {})->port, 29500);
  options.master_addr.clear();
  options.rdzv_backend = "c10d";
  options.rdzv_endpoint = "n1";
  EXPECT_EQ(meet(options, {})->port, 29400);
  options.rdzv_endpoint = "n1:0";
  EXPECT_FALSE(meet(options, {}));
}

}  // namespace
}  // namespace troupe::apps
