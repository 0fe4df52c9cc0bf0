#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "actors/planes/step/rank_program.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/program/memory.hpp"
#include "tests/sharding/scripted_units.hpp"

namespace troupe::actors {
namespace {

using core::Numerics;
using core::Strategy;
using tests::ShardingMesh;

/// Places that play lanes of their own, each of `cp` ranks that share them.
std::vector<ShardingMesh> places() {
  std::vector<ShardingMesh> all;
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const int count : {1, 2, 3}) all.push_back({strategy, 1, count});
  }
  for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp, Strategy::zero1, Strategy::zero2}) {
    for (const auto& [outer, inner] : {std::pair{2, 1}, {2, 2}}) all.push_back({strategy, outer, inner});
  }
  for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp}) all.push_back({strategy, 1, 2});
  return all;
}

Script script_of(const ShardingMesh& mesh, int cp, int lanes = 8) {
  auto script = tests::unit_script(mesh);
  script.session.training.context_parallel = cp;
  script.session.training.lanes = lanes;
  script.gradient = [](const GradientPlace& place) {
    return core::CounterRandom(place.parameter + 16 * static_cast<std::uint64_t>(place.piece), "gradient",
                               place.step, place.lane)
        .normal(place.element);
  };
  return script;
}

JobOutcome<ScriptResult> play(const ShardingMesh& mesh, const Script& script, Storage* disk = nullptr) {
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks() * script.session.training.context_parallel};
  simulation.seed = static_cast<std::uint64_t>(mesh.ranks());
  simulation.storage = disk;
  return simulate_script(std::move(simulation), script);
}

class ContextParallel : public testing::TestWithParam<ShardingMesh> {};

TEST_P(ContextParallel, StepsLikeALoopOverLanesAndPieces) {
  for (const auto& [cp, lanes] : {std::pair{2, 8}, {2, 5}, {3, 4}, {4, 6}}) {
    auto script = script_of(GetParam(), cp, lanes);
    const auto expected = expected_values(script);
    for (const bool overlap : {true, false}) {
      script.session.training.overlap = overlap;
      script.session.training.staging_elements = overlap ? 0 : 40;

      const auto outcome = play(GetParam(), script);

      ASSERT_EQ(problems_of(outcome.report), "") << cp << " " << lanes;
      const double pieces = 100.0 * cp * (cp - 1) / 2;
      for (const auto& rank : outcome.ranks) {
        ASSERT_EQ(rank.after.back(), expected) << cp << " pieces of " << lanes << " lanes";
        EXPECT_EQ(rank.outcomes[0].loss, cp * (lanes - 1) / 2.0 + pieces)
            << "the mean over lanes of the sums over pieces";
        EXPECT_EQ(rank.outcomes[0].gradient_norm, outcome.ranks[0].outcomes[0].gradient_norm);
      }
    }
  }
}

TEST_P(ContextParallel, StepsAlikeWithSeveralPiecesOnARank) {
  for (const auto& [cp, pieces, lanes] : {std::tuple{1, 2, 8}, {1, 4, 5}, {2, 4, 4}, {2, 6, 5}, {1, 3, 1}}) {
    if (lanes < GetParam().ranks()) continue;
    auto script = script_of(GetParam(), cp, lanes);
    script.session.training.context_pieces = pieces;
    for (const auto wire : {core::DType::f32, core::DType::bf16}) {
      script.session.training.wire_dtype = wire;
      script.session.training.staging_elements = wire == core::DType::f32 ? 0 : 40;

      const auto outcome = play(GetParam(), script);

      ASSERT_EQ(problems_of(outcome.report), "") << cp << " " << pieces << " " << lanes;
      for (const auto& rank : outcome.ranks) {
        ASSERT_EQ(rank.after.back(), expected_values(script)) << cp << " ranks have " << pieces << " pieces";
        EXPECT_EQ(rank.outcomes[0].loss, pieces * (lanes - 1) / 2.0 + 100.0 * pieces * (pieces - 1) / 2);
        EXPECT_EQ(rank.outcomes[0].weight, lanes);
      }
    }
  }
}

/// A piece of a lane is what is rounded.
TEST_P(ContextParallel, RoundsEachPieceForANarrowWire) {
  for (const auto& [cp, lanes] : {std::pair{2, 5}, {3, 4}}) {
    auto script = script_of(GetParam(), cp, lanes);
    script.session.training.wire_dtype = core::DType::bf16;

    const auto outcome = play(GetParam(), script);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) ASSERT_EQ(rank.after.back(), expected_values(script));
  }
}

TEST_P(ContextParallel, CountsEachMemberOnce) {
  constexpr int kPieces = 2;
  for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
    for (const bool average : {true, false}) {
      auto script = script_of(GetParam(), kPieces, GetParam().ranks());
      script.steps = 1;
      script.learning_rate = 1;
      script.initial = [](auto, auto) { return 0.0F; };
      auto& training = script.session.training;
      training.numerics = numerics;
      training.average = average;
      training.optimizer = {.kind = core::OptimizerKind::sgd, .weight_decay = 0};
      script.gradient = [](const GradientPlace& place) {
        return std::ldexp(1.0F, place.lane.value * kPieces + place.piece);
      };

      const auto outcome = play(GetParam(), script);

      ASSERT_EQ(problems_of(outcome.report), "");
      const float all = std::ldexp(1.0F, GetParam().ranks() * kPieces) - 1;
      const float expected = average ? all * (1.0F / static_cast<float>(GetParam().ranks())) : all;
      for (const auto& rank : outcome.ranks) {
        for (const auto& parameter : rank.after[0]) {
          for (const float value : parameter) ASSERT_EQ(value, -expected) << core::name_of(numerics);
        }
      }
    }
  }
}

// Covers model-16.
TEST_P(ContextParallel, GoesOnFromACheckpointOfOtherPlacesBitwise) {
  auto whole = script_of(GetParam(), 2);
  const auto expected = expected_values(whole);
  for (const ShardingMesh& to : {ShardingMesh{Strategy::zero1, 1, 1}, {Strategy::zero3, 1, 2}}) {
    SimulatedStorage disk({});
    auto first = script_of(GetParam(), 2);
    first.steps = first.save_after = 2;
    ASSERT_EQ(problems_of(play(GetParam(), first, &disk).report), "");
    auto second = script_of(to, 2);
    second.restore = true;

    const auto outcome = play(to, second, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected) << to.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Places, ContextParallel, testing::ValuesIn(places()),
                         [](const auto& test) { return test.param.name(); });

/// Two pieces with the gradients of one: each step is the double, so a checkpoint belongs to no number of
/// pieces.
TEST(ContextParallelCheckpoint, DoesNotDependOnTheNumberOfPieces) {
  const auto halves = [](int cp) {
    auto script = script_of({Strategy::zero3, 1, 2}, cp);
    script.gradient = [cp](const GradientPlace& place) {
      return static_cast<float>(1 + place.lane.value % 4) / static_cast<float>(cp);
    };
    return script;
  };
  const auto expected = expected_values(halves(1));
  for (const auto& [from, to] : {std::pair{1, 2}, {2, 1}, {4, 2}}) {
    SimulatedStorage disk({});
    auto first = halves(from);
    first.steps = first.save_after = 2;
    ASSERT_EQ(problems_of(play({Strategy::zero3, 1, 2}, first, &disk).report), "");
    auto second = halves(to);
    second.restore = true;

    const auto outcome = play({Strategy::zero3, 1, 2}, second, &disk);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) EXPECT_EQ(rank.after.back(), expected) << from << " to " << to;
  }
}

core::ProgramMemory memory_of(const Script& script, int ranks) {
  const auto plan = plan_training(script.parameters, script.session.training, {ranks});
  return core::memory_of(RankProgram(plan.value(), {0}).program());
}

TEST(ContextParallelMemory, IsCutAmongRanksSharingLanesOrNot) {
  const auto of = [](Strategy strategy, int dp, int cp, int lanes) {
    auto script = script_of({strategy, 1, dp}, cp, lanes);
    script.parameters = {{"a", {1024}}};
    script.parameters[0].unit = core::UnitIndex{0};
    return memory_of(script, dp * cp);
  };
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    const auto data = of(strategy, 4, 1, 4), context = of(strategy, 2, 2, 2);
    EXPECT_EQ(context.parameters, data.parameters);
    EXPECT_EQ(context.gradients, data.gradients);
    EXPECT_EQ(context.optimizer, data.optimizer);
  }
  EXPECT_EQ(of(Strategy::zero3, 2, 2, 2).optimizer, 2 * 4 * 1024 / 4);
  EXPECT_EQ(of(Strategy::zero3, 2, 2, 2).gradients, 4 * 1024 / 4);
  // Where gradients are partial a rank's lanes belong to one piece, and take what whole lanes do.
  EXPECT_EQ(of(Strategy::zero1, 1, 2, 8).gradients, of(Strategy::zero1, 1, 1, 8).gradients);
  // Where rounds reduce them there is a stack for each piece, of shards that are shorter by as much.
  EXPECT_EQ(of(Strategy::zero3, 2, 2, 8).gradients, of(Strategy::zero3, 2, 1, 8).gradients);
}

TEST(ContextParallelLosses, AreThoseOfEachPiece) {
  for (const int more : {-1, 1}) {
    auto script = script_of({Strategy::ddp, 1, 1}, 1);
    script.losses_too_many = more;

    const auto outcome = play({Strategy::ddp, 1, 1}, script);

    ASSERT_FALSE(outcome.report.results[0]);
    EXPECT_EQ(
        outcome.report.results[0].error().message,
        fmt::format("end_lane() was given the losses of {} pieces; this rank computes 1 of a lane: give "
                    "the loss of each, or one for all",
                    1 + more));
  }
}

std::string refusal(int ranks, const std::function<void(core::TrainingOptions&)>& change) {
  auto script = script_of({Strategy::zero1, 1, 1}, 2);
  change(script.session.training);
  const auto plan = plan_training(script.parameters, script.session.training, {ranks});
  return plan ? "" : plan.error().message;
}

TEST(ContextParallelOptions, ThatCannotBeAreRefused) {
  EXPECT_EQ(refusal(4, [](auto&) {}), "");
  EXPECT_EQ(refusal(4, [](auto& training) { training.context_parallel = 3; }),
            "tensor_parallel 1 times context_parallel 3 times pipeline_parallel 1 do not divide 4 ranks; "
            "choose numbers from 1 whose product does");
  EXPECT_EQ(refusal(4, [](auto& training) { training.context_parallel = 0; }),
            "tensor_parallel 1 times context_parallel 0 times pipeline_parallel 1 do not divide 4 ranks; "
            "choose numbers from 1 whose product does");
  EXPECT_EQ(
      refusal(4, [](auto& training) { training.context_pieces = 3; }),
      "context_pieces 3 with context_parallel 2: each of the ranks that share a lane computes as many of "
      "its pieces; choose a multiple of 2, or 0");
  EXPECT_EQ(refusal(4, [](auto& training) { training.optimizer_instances = 4; }),
            "4 optimizer instances do not divide 2 ranks");
}

}  // namespace
}  // namespace troupe::actors
