#include "actors/session/trainer_inbox.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using core::Errc;
using core::Lane;
using core::Step;
using namespace std::chrono_literals;

/// Waits for nothing: what is not there yet has missed its deadline.
class NoPatience final : public TrainerPatience {
 public:
  bool wait(std::unique_lock<std::mutex>&, const std::function<bool()>& ready,
            std::chrono::nanoseconds) override {
    waits += 1;
    return ready();
  }
  void wake() override { wakes += 1; }

  int waits = 0;
  int wakes = 0;
};

class TrainerInboxTest : public testing::Test {
 protected:
  void hear(messages::Message message) { inbox.deliver({{}, {}, {1}, std::move(message)}); }

  NoPatience patience;
  TrainerInbox inbox{2, patience};
};

// Covers ready-5.
TEST_F(TrainerInboxTest, ParameterMayBeReadOnceItsBucketIsPublished) {
  EXPECT_TRUE(inbox.is_published({1}, Step{-1})) << "before the first step everything may be read";
  EXPECT_FALSE(inbox.is_published({1}, Step{0}));

  hear(messages::Published{Step{0}, 1});

  EXPECT_TRUE(inbox.is_published({1}, Step{0}));
  EXPECT_FALSE(inbox.is_published({1}, Step{1}));
  EXPECT_FALSE(inbox.is_published({0}, Step{0})) << "another bucket";
  EXPECT_TRUE(inbox.wait_published({1}, Step{0}, 1s));
}

TEST_F(TrainerInboxTest, TimeoutSaysWhatWasAwaitedLeavingThePortUsable) {
  auto late = inbox.wait_published({1}, Step{3}, 2s);

  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::timeout);
  EXPECT_EQ(late.error().message, "the trainer waited 2 s for the parameters of bucket 1 after step 3");
  EXPECT_EQ(inbox.waiting_for(), "");
  hear(messages::Published{Step{3}, 1});
  EXPECT_TRUE(inbox.wait_published({1}, Step{3}, 2s));
}

TEST_F(TrainerInboxTest, RefusedSaveFreesNoTensorsOfAnEarlierOne) {
  hear(messages::BucketStaged{2});
  hear(messages::BucketStaged{3});
  EXPECT_FALSE(inbox.wait_staged(messages::Role::checkpoint_writer, 3, 1s)) << "save 1 still copies";
  EXPECT_FALSE(inbox.wait_staged(messages::Role::checkpoint_writer, 1, 1s));

  hear(messages::BucketStaged{1});

  EXPECT_TRUE(inbox.wait_staged(messages::Role::checkpoint_writer, 3, 1s));
  EXPECT_FALSE(inbox.wait_staged(messages::Role::checkpoint_writer, 4, 1s));
  EXPECT_FALSE(inbox.wait_staged(messages::Role::local_writer, 1, 1s)) << "of another writer";
}

TEST_F(TrainerInboxTest, TheFirstFailureAnswersEveryWaitFromThenOn) {
  hear(messages::Welcome{});
  hear(messages::StepFailed{Step{0}, {true, Errc::peer_lost, "rank 3 died"}});
  hear(messages::StepFailed{Step{0}, {true, Errc::timeout, "and then this"}});
  hear(messages::Published{Step{0}, 0});

  EXPECT_EQ(inbox.failure(), (core::Error{Errc::peer_lost, "rank 3 died"}));
  EXPECT_EQ(inbox.wait_welcome(1s).error().message, "rank 3 died");
  EXPECT_EQ(inbox.wait_published({0}, Step{0}, 1s).error().message, "rank 3 died");
  EXPECT_EQ(inbox.wait_decided(Step{0}, 1s).error().message, "rank 3 died");
}

TEST_F(TrainerInboxTest, OnlyTheDecisionOfTheStepAskedForCounts) {
  hear(messages::StepDecided{Step{4}, true, {}, 0.5});

  EXPECT_FALSE(inbox.wait_decided(Step{5}, 1s));
  EXPECT_EQ(inbox.wait_decided(Step{4}, 1s)->clip_factor, 0.5);
}

TEST_F(TrainerInboxTest, BucketHasMergedLanesUpToItsReportedOne) {
  hear(messages::LaneMerged{Step{0}, Lane{0}, 0});
  EXPECT_TRUE(inbox.wait_merged({0}, Step{0}, Lane{0}, 1s));
  EXPECT_FALSE(inbox.wait_merged({1}, Step{0}, Lane{0}, 1s)) << "another bucket does not count";
  EXPECT_FALSE(inbox.wait_merged({0}, Step{0}, Lane{1}, 1s));

  hear(messages::LaneMerged{Step{1}, Lane{0}, 0});
  EXPECT_TRUE(inbox.wait_merged({0}, Step{0}, Lane{1}, 1s));
  EXPECT_FALSE(inbox.wait_merged({0}, Step{1}, Lane{1}, 1s));
}

// Covers ready-5.
TEST_F(TrainerInboxTest, UnitIsThereOnceAnEntryBroughtIt) {
  hear(messages::UnitGathered{Step{2}, {5}, {1}});

  EXPECT_TRUE(inbox.wait_unit({1}, Step{2}, {5}, 1s));
  EXPECT_FALSE(inbox.wait_unit({1}, Step{2}, {6}, 1s));
  EXPECT_FALSE(inbox.wait_unit({0}, Step{2}, {5}, 1s));
}

TEST_F(TrainerInboxTest, StoreAnswersGoToTheRequestThatAsked) {
  hear(messages::StoreValue{8, "eight"});
  hear(messages::StoreValue{7, "seven"});

  EXPECT_EQ(inbox.wait_store_value(7, 1s).value(), "seven");
  EXPECT_EQ(inbox.wait_store_value(8, 1s).value(), "eight");
  EXPECT_FALSE(inbox.wait_store_value(8, 1s)) << "an answer is taken once";
}

TEST_F(TrainerInboxTest, EveryMessageWakesTheTrainer) {
  hear(messages::Farewell{2});
  hear(messages::StepCommitted{Step{0}});

  EXPECT_EQ(patience.wakes, 2);
  EXPECT_TRUE(inbox.wait_farewell(1s));
  EXPECT_TRUE(inbox.wait_committed(Step{0}, 1s));
}

}  // namespace
}  // namespace troupe::actors
