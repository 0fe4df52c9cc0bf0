#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "actors/planes/step/rank_program.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/program/memory.hpp"
#include "core/random.hpp"
#include "tests/simulation/expert_job.hpp"
#include "tests/simulation/swarm_of_cuts.hpp"

namespace troupe::actors::experts {
namespace {

class ExpertParallel : public testing::TestWithParam<Spread> {};

/// One rank, or as many as share a lane, which have all experts.
Spread alone_of(const Spread& spread) {
  return {.ranks = spread.cp, .lanes = spread.lanes, .wire = spread.wire, .cp = spread.cp};
}

void expect_bits_of_one_rank(const Spread& spread) {
  const auto alone = run(alone_of(spread), 4);
  const auto together = run(spread, 4);

  ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "");
  const auto expected = whole(alone.ranks);
  EXPECT_EQ(whole(together.ranks), expected);
  EXPECT_NE(expected, whole(run(alone_of(spread), 0).ranks)) << "steps change them";
  for (const auto& rank : together.ranks) {
    EXPECT_EQ(rank.norms, alone.ranks[0].norms) << "every element counts once";
    EXPECT_EQ(rank.losses, spread.tp == 1 ? alone.ranks[0].losses : together.ranks[0].losses);
    EXPECT_EQ(rank.taken.pools, rank.planned.pools);
    EXPECT_EQ(rank.taken.staging, rank.planned.staging);
    EXPECT_GE(rank.taken.at_rest, rank.planned.at_rest);
    EXPECT_LT(rank.taken.at_rest, rank.planned.at_rest + 256 * 100) << "but for alignment";
  }
}

// Covers reduce-12, unit-17.
TEST_P(ExpertParallel, HasTheBitsOfOneRank) {
  expect_bits_of_one_rank(GetParam());
}

TEST_P(ExpertParallel, HasOneRanksBitsWhenGradientsTravelAsBf16) {
  auto spread = GetParam();
  spread.wire = core::DType::bf16;
  expect_bits_of_one_rank(spread);
}

INSTANTIATE_TEST_SUITE_P(Spreads, ExpertParallel, testing::ValuesIn(spreads()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(OfParts, ExpertParallel, testing::ValuesIn(spreads_of_parts()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(OfPieces, ExpertParallel, testing::ValuesIn(spreads_of_pieces()),
                         testing::PrintToStringParamName());

/// Ranks that share a lane and its experts, among others with more lanes, and three parts of each expert.
TEST(ExpertParallelPieces, MayHaveAnyLanesSharedByAGroup) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const auto& [ranks, ep, cp, lanes, parts] : {std::tuple{4, 2, 2, 5, 1},
                                                      {6, 2, 2, 7, 1},
                                                      {8, 2, 4, 3, 1},
                                                      {8, 4, 2, 12, 1},
                                                      {6, 6, 3, 6, 1},
                                                      {6, 2, 1, 12, 3}}) {
      Spread spread{ranks, ep, strategy};
      spread.cp = cp, spread.lanes = lanes, spread.parts = parts;
      expect_bits_of_one_rank(spread);
    }
  }
}

/// NCCL wants exchanges of tokens and the program's collectives in the same order on all ranks.
TEST(ExpertParallelLaunches, AreInOneOrderWhereDevicesNeedIt) {
  const auto alone = run({}, 3);
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    const auto together = run({8, 4, strategy}, 3, nullptr, true);

    ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "");
    EXPECT_EQ(whole(together.ranks), whole(alone.ranks));
  }
}

/// The back-end sums in its own order, and the buffer of an expert takes all sources.
TEST(ExpertParallelFast, ComesCloseToOneRank) {
  for (const int cp : {1, 2}) {
    const auto alone = run(alone_of({.cp = cp}), 4);
    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
      Spread spread{4, 2, strategy, Numerics::fast};
      spread.cp = cp;
      const auto together = run(spread, 4);

      ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "");
      const auto found = whole(together.ranks);
      for (const auto& [name, values] : whole(alone.ranks)) {
        for (std::size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(found.at(name)[i], values[i], 1e-5 * std::abs(values[i])) << name;
      }
    }
  }
}

/// Lanes that do not fill the tree, and groups that are not a power of two.
TEST(ExpertParallelLanes, MayBeAnyMultipleOfTheRanks) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    for (const auto& [ranks, ep, lanes] :
         {std::tuple{4, 2, 12}, {4, 4, 20}, {6, 2, 6}, {6, 2, 18}, {6, 3, 6}, {3, 3, 6}}) {
      const auto alone = run({.strategy = strategy, .lanes = lanes}, 3);
      const auto together = run({ranks, ep, strategy, Numerics::ordered, 1, lanes}, 3);

      ASSERT_EQ(problems_of(alone.report) + problems_of(together.report), "") << ranks << ep << lanes;
      EXPECT_EQ(whole(together.ranks), whole(alone.ranks)) << ranks << ep << lanes;
      EXPECT_EQ(together.ranks[0].norms, alone.ranks[0].norms);
    }
  }
}

// Covers state-3, state-14, model-12.
TEST(ExpertParallelCheckpoint, GoesOnBitwiseWithExpertsOnOtherRanks) {
  const auto expected = whole(run({}, 5).ranks);
  const std::vector<Spread> from_and_to{{1, 1, Strategy::ddp},
                                        {2, 2, Strategy::zero1},
                                        {4, 2, Strategy::zero3},
                                        {4, 4, Strategy::ddp},
                                        {8, 4, Strategy::zero1},
                                        {4, 1, Strategy::zero3},
                                        {4, 2, Strategy::zero1, Numerics::ordered, 1, kLanes, 2},
                                        {.ranks = 4, .ep = 2, .strategy = Strategy::zero3, .parts = 2},
                                        {.ranks = 2, .strategy = Strategy::ddp, .parts = 2},
                                        {6, 2, Strategy::zero3, Numerics::ordered, 1, kLanes, 3}};
  for (const auto& from : from_and_to) {
    for (const auto& to : from_and_to) {
      SimulatedStorage disk({});
      const auto first = run(from, 2, &disk);
      const auto second = run(to, 5, &disk);

      ASSERT_EQ(problems_of(first.report) + problems_of(second.report), "") << from.name() << to.name();
      ASSERT_EQ(second.ranks[0].norms.size(), 3U) << "it goes on after the saved step";
      ASSERT_EQ(whole(second.ranks), expected) << from.name() << " to " << to.name();
    }
  }
}

/// A job of any spread, of which a rank dies or hangs; then others, until one comes to the end.
TEST(ExpertParallelSwarm, EndsWithOneRanksBitsWhateverFails) {
  constexpr int kUntil = 5;
  const auto train_one = [](auto&&... arguments) { return train(arguments...); };
  const auto make_whole = [](const auto& ranks) { return whole(ranks); };

  const auto lives = swarm_of_cuts<Trained>("expert parallel swarm", 40, spreads(), kUntil, train_one,
                                            make_whole, whole(run({}, kUntil).ranks));

  EXPECT_GT(lives.resumed, 10);

  auto parts = spreads_of_parts();
  std::erase_if(parts, [](const Spread& spread) { return spread.cp != 1; });
  const auto of_parts = swarm_of_cuts<Trained>("expert parallel swarm of parts", 10, parts, kUntil, train_one,
                                               make_whole, whole(run({}, kUntil).ranks));

  EXPECT_GT(of_parts.resumed, 1);

  auto pairs = spreads_of_pieces();
  std::erase_if(pairs, [](const Spread& spread) { return spread.cp != 2; });
  const auto of_pairs =
      swarm_of_cuts<Trained>("expert parallel swarm of pieces", 10, pairs, kUntil, train_one, make_whole,
                             whole(run({.ranks = 2, .cp = 2}, kUntil).ranks));

  EXPECT_GT(of_pairs.resumed, 1);
}

/// Every rank gives 2^place to the dense parameters of its pipeline stage, and of every expert each source
/// gives as much. What the parameters end with, from 0.
core::Result<Trained> give_powers_of_two(SimulatedRank& rank, const Spread& spread, int stages,
                                         bool average) {
  auto options = options_of(spread);
  options.training.pipeline_parallel = stages;
  options.training.average = average;
  options.training.clip_norm = 0;
  options.training.optimizer.kind = core::OptimizerKind::sgd;
  const int places = spread.lanes * spread.cp;
  const int place = rank.rank().value / spread.tp % places;
  const int stage = rank.rank().value / (spread.tp * places);
  auto specs = Trainer::specs(spread, rank.rank());
  for (auto& spec : specs) spec.name = fmt::format("{}.{}", stage, spec.name);
  auto session = TRY(Session::join(rank, options, specs));
  TRY(session->begin_step(1));
  const core::Lane lane = session->lanes().front();
  CHECK(session->lanes().size() == 1 && lane.value == place / spread.cp, "a lane for those who share it");
  TRY(session->begin_lane(lane));
  const auto count = static_cast<std::uint32_t>(specs.size());
  for (std::uint32_t p = 0; p < count; ++p) TRY(session->before_use({p}));
  TRY(session->begin_backward());
  for (std::uint32_t p = count; p-- > 0;) {
    TRY(session->before_use({p}));
    const int sources = TRY(session->sources({p}));
    for (int source = 0; source < sources; ++source) {
      const int whose = sources == 1 ? place : place / spread.members() * spread.members() + source;
      for (float& element : TRY(session->gradient({p}, source))) element += std::ldexp(1.0F, whose);
    }
    TRY(session->gradient_ready({p}));
  }
  TRY(session->end_lane(0));
  TRY(session->finish_step());
  Trained trained;
  trained.parameters = TRY(values_of(*session));
  TRY(session->leave());
  return trained;
}

// Covers reduce-11, reduce-12, beyond-3.
TEST(ExpertParallelSums, NameExactlyWhoWasCounted) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
    for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
      for (const bool average : {false, true}) {
        for (const auto& [stages, ep, tp, cp, parts] : {std::tuple{1, 4, 1, 1, 1},
                                                        {2, 2, 1, 1, 1},
                                                        {2, 4, 1, 1, 1},
                                                        {1, 2, 2, 1, 1},
                                                        {2, 2, 2, 1, 1},
                                                        {1, 2, 1, 4, 1},
                                                        {1, 4, 1, 2, 1},
                                                        {2, 2, 1, 2, 1},
                                                        {1, 2, 2, 2, 1},
                                                        {1, 1, 1, 1, 2},
                                                        {1, 2, 1, 1, 2},
                                                        {2, 1, 1, 2, 2}}) {
          const int places = 8 / stages / tp;
          const Spread spread{8, ep, strategy, numerics, 1, places / cp, tp, core::DType::f32, cp, parts};
          SimulationOptions simulation;
          simulation.ranks = {spread.ranks};
          const auto outcome = simulate_job<Trained>(simulation, [&, of = stages](SimulatedRank& rank) {
            return give_powers_of_two(rank, spread, of, average);
          });
          ASSERT_EQ(problems_of(outcome.report), "");
          const auto found = whole(outcome.ranks);
          EXPECT_EQ(found.size(), static_cast<std::size_t>(stages * kLayers * (1 + kExperts)));
          const float sum = std::ldexp(1.0F, places) - 1;
          for (const auto& [name, values] : found) {
            for (const float value : values)
              EXPECT_EQ(value, average ? -sum / static_cast<float>(places / cp) : -sum) << name;
          }
        }
      }
    }
  }
}

/// Kept apart, gradients of a source's lanes take a stack for each source where a rank's lanes are
/// contiguous.
// Covers layout-8, buffer-16, beyond-6.
TEST(ExpertParallelMemory, IsEachSourcesWhereOrderedNumericsSeparateThem) {
  const auto gradients = [](const Spread& spread) {
    const auto plan = plan_training(Trainer::specs(spread, {0}), options_of(spread).training, {spread.ranks});
    return core::memory_of(RankProgram(plan.value(), {0}).program()).gradients;
  };
  const auto alike = [&](Numerics numerics, int ep) { return gradients({4, ep, Strategy::ddp, numerics}); };

  // A layer has 6 elements of dense weights and 24 * 6 of experts, in 3 slots of 4 lanes.
  EXPECT_EQ(alike(Numerics::ordered, 1), kLayers * (6 + 144) * 3 * 4);
  EXPECT_EQ(alike(Numerics::ordered, 4), kLayers * (6 + 36 * 4) * 3 * 4);
  EXPECT_EQ(alike(Numerics::fast, 1), kLayers * (6 + 144) * 4);
  EXPECT_EQ(alike(Numerics::fast, 4), kLayers * (6 + 36) * 4);
}

std::string refusal(const Spread& spread, const std::function<void(SessionOptions&)>& change = {}) {
  auto options = options_of(spread);
  if (change) change(options);
  const auto plan = plan_training(Trainer::specs({8, 1}, {0}), options.training, {spread.ranks});
  return plan ? "" : plan.error().message;
}

TEST(ExpertParallelOptions, ThatCannotBeAreRefused) {
  EXPECT_EQ(refusal({4, 3}),
            "expert_parallel 3 does not divide 4 data-parallel ranks; choose a number from 1 that does");
  EXPECT_EQ(refusal({4, 0}),
            "expert_parallel 0 does not divide 4 data-parallel ranks; choose a number from 1 that does");
  EXPECT_EQ(refusal({8, 8}, [](auto& options) { options.training.tensor_parallel = 2; }),
            "expert_parallel 8 does not divide 4 data-parallel ranks; choose a number from 1 that does");
  const auto with_pieces = [](int cp, int lanes) {
    return [=](auto& options) { options.training.context_parallel = cp, options.training.lanes = lanes; };
  };
  EXPECT_EQ(
      refusal({12, 3}, with_pieces(2, 12)),
      "expert_parallel 3 with context_parallel 2: ranks that experts are distributed over are neighbours, "
      "as are those that share sequences; choose two numbers of which one divides the other");
  EXPECT_EQ(
      refusal({8, 4}, with_pieces(2, 6)),
      "6 lanes are not a multiple of 4 data-parallel ranks times 2 that share lanes, which go through "
      "their lanes together in groups of 4 that experts are distributed over; use a multiple of 4 lanes");
  EXPECT_EQ(refusal({8, 2}, with_pieces(2, 6)), "");
  const auto with_parts = [](int tp, int etp) {
    return [=](auto& options) {
      options.training.tensor_parallel = tp, options.training.expert_tensor_parallel = etp;
    };
  };
  EXPECT_EQ(refusal({8, 1}, with_parts(2, 3)),
            "expert_tensor_parallel 3 with tensor_parallel 2: choose two numbers of which one divides the "
            "other, or 0 "
            "for the same");
  EXPECT_EQ(refusal({8, 1}, with_parts(2, -2)),
            "expert_tensor_parallel -2 with tensor_parallel 2: choose two numbers of which one divides the "
            "other, or "
            "0 for the same");
  EXPECT_EQ(refusal({8, 1}, with_parts(2, 1)),
            "expert_tensor_parallel 1 with tensor_parallel 2: the ranks that share a layer keep different "
            "experts in "
            "2 groups, over which expert_parallel 1 cannot be distributed; choose a multiple of 2");
  EXPECT_EQ(refusal({8, 2}, with_parts(2, 1)), "");
  EXPECT_EQ(
      refusal({8, 4}, with_parts(1, 4)),
      "expert_parallel 4 times 4 parts of each expert does not divide 8 data-parallel ranks; choose a number "
      "from 1 that does");
  EXPECT_EQ(refusal({8, 1}, with_parts(2, 2)), "");
  EXPECT_EQ(
      refusal({4, 2}, [](auto& options) { options.training.lanes = 6; }),
      "6 lanes are not a multiple of 4 data-parallel ranks, which go through their lanes together in groups "
      "of 2 that experts are distributed over; use a multiple of 4 lanes");
  EXPECT_EQ(
      refusal({4, 4, Strategy::zero1, Numerics::ordered, 2}),
      "2 optimizer instances do not divide the 1 ranks that keep the same experts; use fewer instances, "
      "or a smaller expert_parallel");
}

TEST(ExpertParallelOptions, GradientWithoutItsSourceIsRefused) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> core::Result<bool> {
    const Spread spread{2, 2};
    auto session = TRY(Session::join(rank, options_of(spread), Trainer::specs(spread, rank.rank())));
    TRY(session->begin_step(1));
    TRY(session->begin_lane(session->lanes().front()));
    const auto name = expert_name(0, rank.rank().value * kExperts / 2);
    EXPECT_EQ(session->gradient({1}).error().message,
              name + " takes gradients of 2 sources; say whose it is, from 0 to 1, instead of nothing");
    EXPECT_EQ(session->gradient({1}, 2).error().message,
              name + " takes gradients of 2 sources; say whose it is, from 0 to 1, instead of 2");
    EXPECT_EQ(session->gradient({0}, 1).error().message,
              "layer.0.dense takes gradients of 1 sources; say whose it is, from 0 to 0, instead of 1");
    return true;
  });
  EXPECT_EQ(violations_of(outcome.report), "");
}

}  // namespace
}  // namespace troupe::actors::experts
