#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/planes/step/rank_program.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Phase;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// One rank of two, whose step is told launch by launch: four units under zero3, with two slots of each pool.
/// Its first four launches gather units 0 to 3 for forward.
class Credits : public testing::Test {
 protected:
  Credits() : plan_(plan()), program_(plan_, core::Rank{0}) { watched_.joined({0}, plan_); }

  static TrainingPlan plan() {
    TinyTrainerOptions options;
    options.session.training.strategy = core::Strategy::zero3;
    return plan_training(tiny_parameters(options), options.session.training, {2}).value();
  }

  void launch(std::size_t entry) {
    const auto index = core::PlanEntryIndex{static_cast<std::int32_t>(entry)};
    watched_.on_work({{0}, messages::Role::conductor, 0}, LaunchCollective{{0}, index});
  }
  void is_over(std::size_t entry) {
    const auto index = core::PlanEntryIndex{static_cast<std::int32_t>(entry)};
    const messages::Address conductor{{0}, messages::Role::conductor, 0};
    watched_.on_message({0}, {conductor, conductor, core::Epoch{1}, messages::CollectiveDone{{0}, index}});
  }
  void run(std::size_t entry) {
    launch(entry);
    is_over(entry);
  }
  void uses(Phase phase, int unit) { watched_.uses({0}, {core::Step{0}, phase, 0, unit}); }
  void leaves(Phase phase, int unit) { watched_.leaves({0}, {core::Step{0}, phase, 0, unit}); }
  /// All that a step does, in the order of the program.
  void step() {
    const auto clock = program_.clock();
    std::size_t next = 0;
    for (std::int64_t at = 0; at < clock.at({Phase::finish, 0}, 0); ++at) {
      const auto point = clock.point(at);
      const bool computes = point.phase == Phase::forward || point.phase == Phase::backward;
      if (computes) uses(point.phase, point.unit);
      if (computes) leaves(point.phase, point.unit);
      while (next < program_.launches().size() && program_.launches().items()[next].ready <= at) run(next++);
    }
    watched_.finishes({0}, {0});
    while (next < program_.launches().size()) run(next++);
    watched_.step_over({0}, {0});
  }

  TrainingPlan plan_;
  RankProgram program_;
  std::vector<std::string> violations_;
  CreditInvariants watched_{[this](std::string sentence) { violations_.push_back(std::move(sentence)); }};
};

TEST_F(Credits, AStepThatFollowsItsProgramViolatesNothing) {
  step();

  EXPECT_THAT(violations_, IsEmpty());
}

TEST_F(Credits, ALaunchOutOfTheProgramsOrderIsNamed) {
  launch(1);

  ASSERT_FALSE(violations_.empty());
  EXPECT_EQ(
      violations_[0],
      "CO-1: rank 0 launches entry 1, all_gather of parameters 1.0, of step 0; its program has entry 0, "
      "all_gather of parameters 0.0, of step 0");
}

TEST_F(Credits, SlotStillBeingReadIsNotTakenAgain) {
  run(0);
  run(1);
  uses(Phase::forward, 0);
  launch(2);  // for unit 2, into the slot of unit 0

  EXPECT_THAT(
      violations_,
      ElementsAre("CR-1: rank 0 launches all_gather of parameters 2.0 of step 0 into slot 0 of the pool of "
                  "parameters, which all_gather of parameters 0.0 has until 'forward of unit 0' of step 0"));
}

TEST_F(Credits, SlotMayBeTakenOnceItsUserIsGone) {
  run(0);
  run(1);
  uses(Phase::forward, 0);
  leaves(Phase::forward, 0);
  launch(2);

  EXPECT_THAT(violations_, IsEmpty());
}

TEST_F(Credits, AUnitIsNotReadBeforeItIsThere) {
  launch(0);
  uses(Phase::forward, 0);

  EXPECT_THAT(violations_, ElementsAre("UG-1: rank 0 reads in 'forward of unit 0' of round 0 of step 0, but "
                                       "all_gather of parameters 0.0 has not brought the unit"));
}

TEST_F(Credits, GradientSlotHasOneUserUntilReduced) {
  std::size_t next = 0;
  const auto run_through = [&](Phase phase, int unit) {
    for (; program_.launches().items()[next].needed <= program_.clock().at({phase, unit}, 0); ++next)
      run(next);
  };
  for (int unit = 0; unit < 4; ++unit) {
    run_through(Phase::forward, unit);
    uses(Phase::forward, unit);
    leaves(Phase::forward, unit);
  }
  // Backward goes on without any reduction; the third unit has the slot of the first.
  for (const int unit : {3, 2, 1}) {
    uses(Phase::backward, unit);
    leaves(Phase::backward, unit);
  }

  ASSERT_FALSE(violations_.empty());
  EXPECT_EQ(violations_.back(),
            "CR-1: rank 0 writes gradients in 'backward of unit 1' of round 0 of step 0 into slot "
            "0 of their pool, which unit 3 of step 0 has not given back");
}

TEST_F(Credits, StepThatEndsWithASlotTakenIsNamed) {
  uses(Phase::backward, 3);
  violations_.clear();
  watched_.step_over({0}, {0});

  ASSERT_FALSE(violations_.empty());
  EXPECT_EQ(violations_[0], "CR-1: after step 0 rank 0 has slot 0 of the pool of gradients taken for unit 3");
  EXPECT_THAT(violations_.back(), HasSubstr("has not taken and given back its slot"));
}

// Covers beyond-12.
TEST(CreditsOfASimulation, AreConservedByEveryStrategyThatHasPools) {
  for (const auto strategy :
       {core::Strategy::zero2, core::Strategy::zero3, core::Strategy::hsdp, core::Strategy::hfsdp}) {
    auto options = tiny_job(strategy);
    if (strategy == core::Strategy::hsdp || strategy == core::Strategy::hfsdp)
      options.session.training.optimizer_instances = 2;
    // With 8 lanes on 4 and on 6 ranks: with and without ranks that have no lane in the last round.
    for (const int ranks : {4, 6}) {
      EXPECT_EQ(problems_of(simulate_tiny(ranks, 3, options).report), "") << core::name_of(strategy);
    }
  }
}

/// A rank dies while others reduce with it: their slots hold gradients that went nowhere.
TEST(CreditsOfASimulation, AreNotGivenBackByACollectiveThatFailed) {
  TinyTrainerOptions options;
  options.layers = 6;
  options.steps = 5;
  auto& training = options.session.training;
  training.strategy = core::Strategy::zero2;
  training.optimizer_instances = 2;
  training.lanes = 17;
  training.bucket_elements = 64;
  training.clip_norm = 1;
  for (const bool overlap : {false, true}) {
    training.overlap = overlap;
    const SimulatedFault death{SimulatedFault::Kind::kill, {10}, std::chrono::microseconds(1021)};
    EXPECT_EQ(violations_of(simulate_tiny(12, 7481, options, {death}).report), "") << overlap;
  }
}

}  // namespace
}  // namespace troupe::actors
