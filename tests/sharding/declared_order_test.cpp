#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "actors/planes/step/training_plan.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::DeclaredOrder;
using core::Strategy;
using testing::HasSubstr;
using tests::ShardingMesh;

constexpr int kLayers = 5;

std::vector<core::UnitIndex> shuffled(int units, std::uint64_t seed, std::string_view name) {
  const core::CounterRandom random(seed, name);
  std::vector<core::UnitIndex> order;
  for (std::uint32_t unit = 0; unit < static_cast<std::uint32_t>(units); ++unit) order.push_back({unit});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(static_cast<std::uint32_t>(i), i)]);
  }
  return order;
}

/// Every other one has a backward of its own.
DeclaredOrder drawn(int units, std::uint64_t seed) {
  DeclaredOrder order{shuffled(units, seed, "forward"), {}};
  if (seed % 2 == 1) order.backward = shuffled(units, seed, "backward");
  return order;
}

TinyTrainerOptions job_on(const ShardingMesh& mesh, const DeclaredOrder& order) {
  TinyTrainerOptions options;
  options.layers = kLayers;
  options.session.order = order;
  options.session.training.strategy = mesh.strategy;
  options.session.training.optimizer_instances = mesh.outer;
  options.session.training.lanes = 8;
  options.session.training.bucket_elements = 40;
  options.session.training.clip_norm = 1;
  options.session.checkpoint.staging_bytes = 2048;
  options.session.checkpoint.chunk_bytes = 256;
  options.session.checkpoint.deadline = std::chrono::seconds(30);
  return options;
}

JobOutcome<TinyTrainerResult> run(const ShardingMesh& mesh, std::uint64_t seed,
                                  const TinyTrainerOptions& options, Storage* disk = nullptr,
                                  std::vector<SimulatedFault> faults = {}) {
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks()};
  simulation.seed = seed;
  simulation.storage = disk;
  simulation.faults = std::move(faults);
  return simulate_tiny(simulation, options);
}

/// What one rank that keeps everything computes, in the order of numbers.
const TinyTrainerResult& alone() {
  static const auto outcome = [] {
    const ShardingMesh one{Strategy::ddp, 1, 1};
    auto only = run(one, 0, job_on(one, {}));
    EXPECT_EQ(problems_of(only.report), "");
    return only;
  }();
  return outcome.ranks[0];
}

/// What the program's streams carried in steps: names in the order in which they began.
std::vector<std::string> collectives_in(const std::vector<core::TraceEvent>& trace) {
  std::vector<std::string> names;
  for (const auto& event : trace) {
    if (event.track == "communication" || event.track == "gather") names.push_back(event.name);
  }
  return names;
}

class DeclaredOrderOn : public testing::TestWithParam<ShardingMesh> {};

// Covers unit-11.
TEST_P(DeclaredOrderOn, AnyMeshAndStrategyHasTheUsualBits) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    auto options = job_on(GetParam(), drawn(kLayers, seed));
    options.session.training.gathered_units = 1 + static_cast<int>(seed % 3);
    options.session.training.overlap = seed % 4 != 3;

    const auto outcome = run(GetParam(), seed, options);

    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed;
    for (const auto& rank : outcome.ranks) {
      ASSERT_EQ(rank.state_hash, alone().state_hash) << "seed " << seed;
      ASSERT_EQ(rank.outcomes.back().loss, alone().outcomes.back().loss) << "seed " << seed;
      ASSERT_EQ(rank.outcomes.back().gradient_norm, alone().outcomes.back().gradient_norm);
    }
  }
}

// Covers unit-11.
TEST_P(DeclaredOrderOn, LearnedIsFollowedAsIfDeclared) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const auto order = drawn(kLayers, seed);
    auto declaring = job_on(GetParam(), order);
    declaring.session.training.gathered_units = 1 + static_cast<int>(seed % 3);
    declaring.session.training.overlap = seed % 4 != 3;
    declaring.session.trace = true;
    auto learning = declaring;
    // What was declared does not outlive what is learned.
    learning.session.order = seed % 2 == 0 ? DeclaredOrder{} : drawn(kLayers, seed + 100);
    learning.learned = order;

    const auto declared = run(GetParam(), seed, declaring);
    const auto learned = run(GetParam(), seed, learning);

    ASSERT_EQ(problems_of(learned.report), "") << "seed " << seed;
    for (std::size_t rank = 0; rank < learned.ranks.size(); ++rank) {
      ASSERT_EQ(learned.ranks[rank].state_hash, alone().state_hash) << "seed " << seed;
      const auto collectives = collectives_in(learned.ranks[rank].trace);
      ASSERT_EQ(collectives, collectives_in(declared.ranks[rank].trace)) << "seed " << seed;
      ASSERT_FALSE(collectives.empty());
    }
  }
}

TEST_P(DeclaredOrderOn, ACheckpointGoesOnInAnother) {
  constexpr std::int64_t kSavedAt = 2;
  SimulatedStorage disk({});
  auto saving = job_on(GetParam(), drawn(kLayers, 1));
  saving.steps = saving.save_every = kSavedAt;
  const auto before = run(GetParam(), 5, saving, &disk);
  ASSERT_EQ(problems_of(before.report), "");
  ASSERT_TRUE(before.ranks[0].saves.at(0).committed);

  for (const ShardingMesh& mesh : {GetParam(), {Strategy::zero3, 1, 3}, {Strategy::hfsdp, 2, 2}}) {
    const std::pair<DeclaredOrder, DeclaredOrder> orders[] = {
        {{}, {}}, {drawn(kLayers, 2), {}}, {{}, drawn(kLayers, 3)}};
    for (const auto& [order, learned] : orders) {
      auto going_on = job_on(mesh, order);
      going_on.restore = true;
      going_on.learned = learned;

      const auto after = run(mesh, 5, going_on, &disk);

      ASSERT_EQ(problems_of(after.report), "") << mesh;
      for (const auto& rank : after.ranks) {
        ASSERT_TRUE(rank.restored) << mesh;
        EXPECT_EQ(rank.restored->step.value, kSavedAt);
        EXPECT_EQ(rank.state_hash, alone().state_hash) << mesh;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, DeclaredOrderOn, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

/// Drawn meshes and orders, in which now and then a rank dies.
TEST(DeclaredOrderSwarm, ViolatesNothingAndKeepsOneRanksBitsWithoutDeaths) {
  const auto meshes = tests::sharding_meshes();
  int deaths = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const core::CounterRandom random(seed, "swarm of orders");
    const auto& mesh = meshes[random.below(static_cast<std::uint32_t>(meshes.size()), 0)];
    auto options = job_on(mesh, drawn(kLayers, seed));
    if (seed % 2 == 1) options.learned = std::exchange(options.session.order, {});
    options.session.training.gathered_units = 1 + static_cast<int>(random.below(kLayers, 1));
    options.session.training.overlap = random.below(4, 2) != 0;
    std::vector<SimulatedFault> faults;
    if (random.below(2, 3) == 0) {
      const auto rank = random.below(static_cast<std::uint32_t>(mesh.ranks()), 4);
      const auto kind = random.below(3, 5) == 0 ? SimulatedFault::Kind::hang : SimulatedFault::Kind::kill;
      faults.push_back({.kind = kind,
                        .rank = {static_cast<std::int32_t>(rank)},
                        .at = std::chrono::microseconds(random.below(6000, 6))});
    }

    const auto outcome = run(mesh, seed, options, nullptr, faults);

    ASSERT_EQ(violations_of(outcome.report), "") << "seed " << seed << ", " << mesh;
    const bool is_whole = problems_of(outcome.report).empty();
    ASSERT_TRUE(is_whole || !faults.empty()) << "seed " << seed << ", " << problems_of(outcome.report);
    deaths += is_whole ? 0 : 1;
    for (std::size_t r = 0; is_whole && r < outcome.ranks.size(); ++r) {
      ASSERT_EQ(outcome.ranks[r].state_hash, alone().state_hash) << "seed " << seed << ", " << mesh;
    }
  }
  EXPECT_GT(deaths, 50);
}

/// Backward begins where the last unit of the order of forward ends, whatever its number: what comes between
/// them, a loss that takes far longer than a gather, hides the gathers of backward's first two units.
TEST(DeclaredOrderOfAStep, GathersTheFirstUnitsOfBackwardUnderTheLoss) {
  const ShardingMesh mesh{Strategy::zero3, 1, 2};
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const auto order = seed == 0 ? DeclaredOrder{} : drawn(kLayers, seed);
    const auto options = job_on(mesh, order);
    SimulationOptions simulation;
    simulation.ranks = {mesh.ranks()};
    simulation.seed = seed;
    using Waits = std::vector<std::chrono::nanoseconds>;  // of backward, unit after unit

    const auto outcome = simulate_job<Waits>(simulation, [&](SimulatedRank& rank) -> core::Result<Waits> {
      auto session = TRY(Session::join(rank, options.session, tiny_parameters(options)));
      const auto units = [&](const std::vector<core::UnitIndex>& declared) {
        if (!declared.empty()) return declared;
        std::vector<core::UnitIndex> all;
        for (std::uint32_t unit = 0; unit < session->units(); ++unit) all.push_back({unit});
        return all;
      };
      const auto forward = units(order.forward);
      const auto backward =
          order.backward.empty() ? std::vector(forward.rbegin(), forward.rend()) : units(order.backward);
      TRY(session->begin_step(0));
      TRY(session->begin_lane(session->lanes()[0]));
      for (const auto unit : forward) TRY(session->acquire(unit));
      TRY(session->begin_backward());
      rank.compute(std::chrono::seconds(1));
      Waits waits;
      for (const auto unit : backward) {
        const auto begin = rank.device().now();
        TRY(session->acquire(unit));
        waits.push_back(rank.device().now() - begin);
      }
      return waits;
    });

    ASSERT_EQ(problems_of(outcome.report), "") << "seed " << seed;
    for (const auto& waits : outcome.ranks) {
      EXPECT_EQ(waits[0].count(), 0) << "seed " << seed;
      EXPECT_EQ(waits[1].count(), 0) << "seed " << seed;
      EXPECT_GT(waits[2].count(), 0) << "nothing was computed that could hide it";
    }
  }
}

TEST(DeclaredOrderOfOneRank, ThatDiffersIsRefusedByNameAtTheJoin) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> core::Result<bool> {
    auto options = job_on({Strategy::zero3, 1, 2}, {{{2}, {0}, {1}, {3}, {4}}, {}});
    if (rank.rank().value == 1) options.session.order.forward = {{2}, {1}, {0}, {3}, {4}};
    return TRY(Session::join(rank, options.session, tiny_parameters(options))) != nullptr;
  });

  EXPECT_EQ(violations_of(outcome.report), "");
  for (const auto& result : outcome.report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, core::Errc::mismatch);
    EXPECT_THAT(result.error().message, HasSubstr("rank 1 plans another step than rank 0"));
    EXPECT_THAT(result.error().message, HasSubstr("rank 0 has \"order of forward 2,0,1,3,4\", the other has "
                                                  "\"order of forward 2,1,0,3,4\""));
  }
}

TEST(DeclaredOrderOfAPlan, MovesNoParameter) {
  const ShardingMesh mesh{Strategy::zero3, 1, 2};
  const auto usual = job_on(mesh, {});
  const auto other = job_on(mesh, drawn(kLayers, 3));
  const auto plan_of = [](const TinyTrainerOptions& options) {
    return plan_training(tiny_parameters(options), options.session.training, {2}, {}, options.session.order)
        .value();
  };

  const auto one = plan_of(usual);
  const auto two = plan_of(other);

  EXPECT_NE(one.inputs.order, two.inputs.order);
  ASSERT_EQ(one.parameters.size(), two.parameters.size());
  for (const auto p : one.parameters.indices()) {
    EXPECT_EQ(one.parameters[p].bucket, two.parameters[p].bucket);
    EXPECT_EQ(one.parameters[p].range, two.parameters[p].range);
  }
  EXPECT_EQ(one.configuration, two.configuration);
}

TEST(DeclaredOrderOfAPlan, IsRefusedByNameUnderEveryStrategyIfWrong) {
  const auto message = [](Strategy strategy, const DeclaredOrder& order,
                          std::vector<core::UnitPass> passes = {}) -> std::string {
    TinyTrainerOptions options;
    options.layers = 3;
    options.session.training.strategy = strategy;
    const auto plan =
        plan_training(tiny_parameters(options), options.session.training, {2}, std::move(passes), order);
    if (plan) return "it was planned";
    EXPECT_EQ(plan.error().code, core::Errc::invalid_argument);
    return plan.error().message;
  };

  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    EXPECT_EQ(message(strategy, {{{2}, {0}}, {}}),
              "SessionOptions::order: the forward order lacks unit 1; it has each of 3 units once; units of "
              "parameters: 0 of layer0.weight, 1 of layer1.weight, 2 of layer2.weight");
    EXPECT_THAT(message(strategy, {{{2}, {0}, {2}}, {}}),
                HasSubstr("the forward order has unit 2 twice, at places 0 and 2"));
    EXPECT_THAT(message(strategy, {{}, {{2}, {1}, {7}}}),
                HasSubstr("the backward order has unit 7 at place 2, but there are 3 units"));
    EXPECT_EQ(message(strategy, {{{2}, {0}, {1}}, {}}), "it was planned");
    EXPECT_THAT(message(strategy, {{{2}, {0}, {1}}, {}},
                        {{core::Pass::forward, 0, 0, 3}, {core::Pass::backward, 0, 0, 3}}),
                HasSubstr("SessionOptions::order was given beside a list of passes"));
  }
  const auto unnamed = plan_training({{"w", {8}}}, {}, {1}, {}, {{{0}}, {}});
  ASSERT_FALSE(unnamed);
  EXPECT_THAT(unnamed.error().message,
              HasSubstr("there are 0 units, numbered from 0; units of parameters: none"));
}

}  // namespace
}  // namespace troupe::actors
