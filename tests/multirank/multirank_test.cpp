#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>

#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe {
namespace {

tests::CommandResult run(const std::string& check) {
  return tests::run_command(
      {TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node", "4", "--", CHECKS_BINARY, check},
      std::chrono::seconds(200));
}

class Multirank : public testing::TestWithParam<const char*> {};

// Covers ranks-2, ranks-3, ranks-4, ranks-5, ranks-6, ranks-7, ranks-8, ranks-9, ranks-10, ranks-11,
// ranks-12, ranks-13.
TEST_P(Multirank, HoldsOnFourProcesses) {
  const auto result = run(GetParam());

  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(result.output,
                testing::HasSubstr("[rank " + std::to_string(rank) + "] " + GetParam() + ": good"))
        << "every rank has looked";
  }
}

INSTANTIATE_TEST_SUITE_P(Checks, Multirank,
                         testing::Values("blocks", "batches", "batches_that_differ", "values",
                                         "values_that_differ", "moments", "vocabulary_of_two",
                                         "vocabulary_of_four"),
                         [](const auto& each) { return std::string(each.param); });

class OneOfFour : public testing::TestWithParam<const char*> {};

TEST_P(OneOfFour, IsNamedToAllWithinSeconds) {
  const tests::ScratchFolder folder;

  const auto result = tests::run_command({TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node", "4",
                                          "--", CHECKS_BINARY, GetParam(), folder.path("checkpoints")},
                                         std::chrono::seconds(60));

  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(result.output,
                testing::HasSubstr("[rank " + std::to_string(rank) + "] " + GetParam() + ": good"));
}

INSTANTIATE_TEST_SUITE_P(Calls, OneOfFour,
                         testing::Values("save_alone", "restore_alone", "leave_alone", "evaluation_alone"),
                         [](const auto& each) { return std::string(each.param); });

// Covers ranks-1.
TEST(MultirankLaunches, FollowEachOther) {
  for (int launch = 0; launch < 2; ++launch) EXPECT_EQ(run("values").exit_code, 0);
}

// Covers ranks-1.
TEST(MultirankLaunches, FailAndEndWhenOneRankDoes) {
  const auto begin = std::chrono::steady_clock::now();
  const auto result = run("one_rank_fails");

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, testing::HasSubstr("rank 2"));
  // Each rank said which process it is; the launcher's own lines have words after "process ".
  int ranks = 0;
  for (std::size_t at = result.output.find("process "); at != std::string::npos;
       at = result.output.find("process ", at + 1)) {
    const int pid = std::atoi(result.output.c_str() + at + 8);
    if (pid <= 0) continue;
    ++ranks;
    EXPECT_NE(kill(pid, 0), 0) << pid << " is left";
  }
  EXPECT_EQ(ranks, 4) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace troupe
