#include "actors/planes/checkpoint/claim.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/simulation/storage.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using testing::ElementsAre;
using testing::HasSubstr;

CheckpointWriterEpoch of(std::uint64_t epoch, std::string job = "a job") {
  return {std::move(job), core::Epoch{epoch}};
}

class Claim : public testing::Test {
 protected:
  void write(std::string_view text) {
    auto file = disk_.create("epoch_of_job.txt").value();
    ASSERT_TRUE(file->append(std::as_bytes(std::span(text))));
    ASSERT_TRUE(file->close());
  }

  SimulatedStorage disk_{{}};
};

TEST_F(Claim, KeepsOnlyEarlierEpochsOfTheJobAway) {
  EXPECT_TRUE(check_claim(disk_, of(1))) << "nobody has claimed it";

  ASSERT_TRUE(claim_directory(disk_, of(3)));

  EXPECT_EQ(check_claim(disk_, of(2)).error().code, Errc::stale_epoch);
  EXPECT_THAT(check_claim(disk_, of(2)).error().message, HasSubstr("epoch 3"));
  EXPECT_TRUE(check_claim(disk_, of(3)));
  EXPECT_TRUE(check_claim(disk_, of(4)));
  EXPECT_TRUE(check_claim(disk_, of(1, "another job")));
  EXPECT_TRUE(check_claim(disk_, of(1, "a")));
  EXPECT_THAT(*disk_.list(""), ElementsAre("epoch_of_job.txt"));
}

TEST_F(Claim, IsNotGivenUpToAnEarlierEpoch) {
  ASSERT_TRUE(claim_directory(disk_, of(5)));

  EXPECT_EQ(claim_directory(disk_, of(4)).error().code, Errc::stale_epoch);
  EXPECT_TRUE(claim_directory(disk_, of(5))) << "again, by the same";

  EXPECT_EQ(check_claim(disk_, of(4)).error().code, Errc::stale_epoch);
}

TEST_F(Claim, WhatIsNoClaimClaimsNothing) {
  for (const std::string text :
       {"", "9", "9 ", "9 a job", "nine a job\n", "-9 a job\n", "9 a job\nmore", " a job\n"}) {
    write(text);

    EXPECT_TRUE(check_claim(disk_, of(1))) << text;
    EXPECT_TRUE(claim_directory(disk_, of(2))) << text;
    EXPECT_FALSE(check_claim(disk_, of(1))) << text;
  }
}

TEST_F(Claim, IsAskedLastBeforeASaveIsCommitted) {
  ASSERT_TRUE(disk_.make_directory("step_00000001.tmp-0123456789abcdef"));
  ASSERT_TRUE(claim_directory(disk_, of(2)));

  const auto committed = commit_checkpoint(disk_, "step_00000001.tmp-0123456789abcdef", "step_00000001", "{}",
                                           kMaxManifestBytes, [this] { return check_claim(disk_, of(1)); });

  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code, Errc::stale_epoch);
  EXPECT_TRUE(list_checkpoints(disk_)->empty());
}

}  // namespace
}  // namespace troupe::actors
