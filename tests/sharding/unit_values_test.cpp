#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "actors/planes/step/training_plan.hpp"
#include "core/errors.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::Strategy;
using testing::HasSubstr;
using tests::ShardingMesh;

constexpr float kFirst = 8;
constexpr std::uint32_t kUnits = 3;
constexpr int kLanesOfARank = 2;

/// One parameter outside of units, and then one for each unit, of unequal sizes.
std::vector<core::ParameterSpec> parameters() {
  std::vector<core::ParameterSpec> specs{{"scale", {5}}};
  for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
    specs.push_back({fmt::format("unit{}", unit), {16 + 13 * unit}});
    specs.back().unit = core::UnitIndex{unit};
  }
  return specs;
}

core::ParameterIndex of(core::UnitIndex unit) {
  return {unit.value + 1};
}

SessionOptions options_of(const ShardingMesh& mesh) {
  SessionOptions options;
  options.training.strategy = mesh.strategy;
  options.training.optimizer_instances = mesh.outer;
  options.training.lanes = kLanesOfARank * mesh.ranks();
  options.training.optimizer.kind = core::OptimizerKind::sgd;
  return options;
}

/// What a trainer sees that steps by gradients which are one more than the number of its rank.
struct Seen {
  std::vector<float> forward;          ///< first value of each unit in every forward
  std::vector<const void*> addresses;  ///< of what it read, in forward and then in backward
  std::vector<float> evaluated;        ///< all values at the end
};

const std::vector<core::UnitIndex> kUp{{0}, {1}, {2}};
const std::vector<core::UnitIndex> kDown{{2}, {1}, {0}};

class UnitTrainer {
 public:
  UnitTrainer(Session& session, const core::DeclaredOrder& order, Seen& seen)
      : session_(session),
        seen_(seen),
        forward_(order.forward.empty() ? kUp : order.forward),
        backward_(order.backward.empty() ? std::vector(forward_.rbegin(), forward_.rend()) : order.backward) {
  }

  core::Result<void> initialise() {
    for (std::uint32_t p = 0; p <= kUnits; ++p) {
      TRY(session_.write_parameter(
          {p}, [](auto, std::span<float> values) { std::fill(values.begin(), values.end(), kFirst); }));
    }
    return {};
  }

  core::Result<void> step() {
    TRY(session_.begin_step(1));
    for (const core::Lane lane : session_.lanes()) {
      TRY(session_.begin_lane(lane));
      for (const auto unit : forward_) seen_.forward.push_back(TRY(read(unit))[0]);
      TRY(session_.begin_backward());
      for (const auto unit : backward_) {
        TRY(read(unit));
        TRY(add_gradient(of(unit)));
      }
      TRY(session_.before_use({0}));
      TRY(add_gradient({0}));
      TRY(session_.end_lane(0));
    }
    TRY(session_.finish_step());
    return {};
  }

  core::Result<void> evaluate() {
    TRY(session_.begin_evaluation());
    for (std::uint32_t p = 0; p <= kUnits; ++p) {
      TRY(session_.before_use({p}));
      for (const float value : TRY(session_.parameter({p}))) seen_.evaluated.push_back(value);
    }
    return session_.end_evaluation();
  }

 private:
  core::Result<std::span<float>> read(core::UnitIndex unit) {
    if (session_.units() > 0) {
      TRY(session_.acquire(unit));
    } else {
      TRY(session_.before_use(of(unit)));
    }
    const auto values = TRY(session_.parameter(of(unit)));
    seen_.addresses.push_back(values.data());
    return values;
  }

  core::Result<void> add_gradient(core::ParameterIndex parameter) {
    for (float& g : TRY(session_.gradient(parameter))) g += static_cast<float>(session_.rank().value + 1);
    return session_.gradient_ready(parameter);
  }

  Session& session_;
  Seen& seen_;
  std::vector<core::UnitIndex> forward_, backward_;
};

JobOutcome<Seen> train(const ShardingMesh& mesh, int steps, const core::DeclaredOrder& order = {}) {
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks()};
  return simulate_job<Seen>(simulation, [&](SimulatedRank& rank) -> core::Result<Seen> {
    auto options = options_of(mesh);
    options.order = order;
    auto session = TRY(Session::join(rank, options, parameters()));
    Seen seen;
    UnitTrainer trainer(*session, order, seen);
    TRY(trainer.initialise());
    for (int step = 0; step < steps; ++step) TRY(trainer.step());
    TRY(trainer.evaluate());
    TRY(session->leave());
    return seen;
  });
}

class UnitValues : public testing::TestWithParam<ShardingMesh> {};

/// The mean of 1, 2, .. over the ranks, whichever lane it came in: every rank accumulates two of them.
// Covers shard-5, adapter-4, adapter-9, unit-27, unit-28, unit-32.
TEST_P(UnitValues, AreReadNextAsTheMeanGradientSteppedThem) {
  const auto& mesh = GetParam();
  const float mean = static_cast<float>(mesh.ranks() + 1) / 2;

  // Also in a declared order, and in one whose backward is not its opposite.
  for (const core::DeclaredOrder& order : {core::DeclaredOrder{}, {{{1}, {2}, {0}}, {}}, {kDown, kDown}}) {
    const auto outcome = train(mesh, 2, order);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (const auto& rank : outcome.ranks) {
      std::vector<float> expected(kLanesOfARank * kUnits, kFirst);
      expected.insert(expected.end(), kLanesOfARank * kUnits, kFirst - mean);
      EXPECT_EQ(rank.forward, expected);
      EXPECT_EQ(rank.evaluated, std::vector<float>(5 + 16 + 29 + 42, kFirst - 2 * mean));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, UnitValues,
    testing::Values(ShardingMesh{Strategy::ddp, 1, 2}, ShardingMesh{Strategy::zero1, 1, 2},
                    ShardingMesh{Strategy::zero2, 1, 2}, ShardingMesh{Strategy::zero3, 1, 2},
                    ShardingMesh{Strategy::zero3, 1, 4}, ShardingMesh{Strategy::hsdp, 2, 2},
                    ShardingMesh{Strategy::hfsdp, 2, 2}),
    [](const auto& each) { return each.param.name(); });

// Covers adapter-11, unit-4.
TEST(UnitMemory, AlternatesBetweenTheSameTwoSlotsInEverySweep) {
  for (const core::DeclaredOrder& order : {core::DeclaredOrder{}, {{{1}, {2}, {0}}, kUp}}) {
    const auto outcome = train({Strategy::zero3, 1, 2}, 3, order);

    ASSERT_EQ(problems_of(outcome.report), "");
    const auto& addresses = outcome.ranks[0].addresses;
    ASSERT_EQ(addresses.size(), 3 * kLanesOfARank * 2 * kUnits);
    EXPECT_NE(addresses[0], addresses[1]);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      EXPECT_EQ(addresses[i], addresses[i % kUnits % 2]) << "read " << i;
    }
  }
}

// Covers unit-18.
TEST(PlannedUnits, ReducingEachRoundHaveOneMicrobatchPerLane) {
  for (const auto strategy : {Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    auto training = options_of({strategy, 2, 2}).training;
    if (strategy == Strategy::zero2 || strategy == Strategy::zero3) training.optimizer_instances = 1;
    training.microbatches = 3;

    const auto plan = plan_training(parameters(), training, {4});

    ASSERT_FALSE(plan) << core::name_of(strategy);
    EXPECT_THAT(plan.error().message, HasSubstr("use 24 lanes instead of 8 lanes of 3 microbatches"));
  }
}

// Covers unit-25.
TEST(PlannedUnits, AreNumberedWithoutGaps) {
  auto specs = parameters();
  specs[2].unit.reset();

  const auto plan = plan_training(specs, options_of({Strategy::zero3, 1, 2}).training, {2});

  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message, HasSubstr("unit 1 has no parameters, though there are 3 units"));
}

}  // namespace
}  // namespace troupe::actors
