#include <gtest/gtest.h>

#include "actors/world/simulation/storage.hpp"
#include "core/plan/terms.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using tests::ShardingMesh;

constexpr std::int64_t kSavedAt = 3;
constexpr std::int64_t kSteps = 7;

TinyTrainerOptions job_on(const ShardingMesh& mesh) {
  TinyTrainerOptions options;
  options.session.training.strategy = mesh.strategy;
  options.session.training.optimizer_instances = mesh.outer;
  options.session.training.lanes = 8;
  options.session.training.bucket_elements = 40;
  options.session.checkpoint.staging_bytes = 2048;
  options.session.checkpoint.chunk_bytes = 256;
  options.session.checkpoint.deadline = std::chrono::seconds(30);
  options.steps = kSteps;
  return options;
}

JobOutcome<TinyTrainerResult> run(Storage& disk, const ShardingMesh& mesh,
                                  const TinyTrainerOptions& options) {
  SimulationOptions simulation;
  simulation.ranks = {mesh.ranks()};
  simulation.seed = 5;
  simulation.storage = &disk;
  return simulate_tiny(simulation, options);
}

std::uint64_t uninterrupted() {
  static const std::uint64_t hash = [] {
    SimulatedStorage disk({});
    const ShardingMesh one{core::Strategy::ddp, 1, 1};
    auto outcome = run(disk, one, job_on(one));
    EXPECT_EQ(violations_of(outcome.report), "");
    return outcome.ranks[0].state_hash;
  }();
  return hash;
}

/// Its gradients have the same slot in every round.
TEST(ShardedSteps, OfASingleUnitWaitForTheRoundBefore) {
  const auto hash_of = [](const ShardingMesh& mesh, std::uint64_t seed) {
    auto options = job_on(mesh);
    options.layers = 1;
    SimulationOptions simulation;
    simulation.ranks = {mesh.ranks()};
    simulation.seed = seed;
    const auto outcome = simulate_tiny(simulation, options);
    EXPECT_EQ(violations_of(outcome.report), "");
    return outcome.ranks[0].state_hash;
  };
  const auto expected = hash_of({core::Strategy::ddp, 1, 1}, 0);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const auto strategy : {core::Strategy::zero2, core::Strategy::zero3}) {
      ASSERT_EQ(hash_of({strategy, 1, 3}, seed), expected) << core::name_of(strategy) << ", seed " << seed;
    }
  }
}

/// PS-4: an update that waits for a save must not be overtaken by the gather of the step after it.
TEST(ShardedSteps, WaitForUpdatesThatASaveHoldsUp) {
  for (const auto strategy : {core::Strategy::zero2, core::Strategy::zero3}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const ShardingMesh mesh{strategy, 1, 3};
      auto options = job_on(mesh);
      options.save_every = 1;
      options.session.checkpoint.staging_bytes = 256;
      options.session.checkpoint.chunk_bytes = 64;
      SimulatedStorage disk({});
      SimulationOptions simulation;
      simulation.ranks = {mesh.ranks()};
      simulation.seed = seed;
      simulation.storage = &disk;
      const auto outcome = simulate_tiny(simulation, options);
      ASSERT_EQ(violations_of(outcome.report), "");
      ASSERT_EQ(outcome.ranks[0].state_hash, uninterrupted()) << core::name_of(strategy) << ", seed " << seed;
    }
  }
}

class ShardedCheckpoint : public testing::TestWithParam<ShardingMesh> {};

// Covers shard-2, unit-15, state-3, state-5, state-7, state-12, ranks-14, ranks-15.
TEST_P(ShardedCheckpoint, GoesOnBitwiseOnEveryMeshAndStrategy) {
  SimulatedStorage disk({});
  auto saving = job_on(GetParam());
  saving.steps = kSavedAt;
  saving.save_every = kSavedAt;
  const auto before = run(disk, GetParam(), saving);
  ASSERT_EQ(violations_of(before.report), "");
  ASSERT_EQ(before.ranks[0].saves.size(), 1U);
  ASSERT_TRUE(before.ranks[0].saves[0].committed) << before.ranks[0].saves[0].committed.error().message;

  for (const auto& mesh : tests::sharding_meshes()) {
    auto going_on = job_on(mesh);
    going_on.restore = true;
    const auto after = run(disk, mesh, going_on);
    ASSERT_EQ(violations_of(after.report), "") << mesh;
    for (const auto& result : after.report.results) ASSERT_TRUE(result) << mesh << result.error().message;
    for (const auto& rank : after.ranks) {
      ASSERT_TRUE(rank.restored) << mesh;
      EXPECT_EQ(rank.restored->step.value, kSavedAt) << mesh;
      EXPECT_EQ(rank.state_hash, uninterrupted()) << mesh;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, ShardedCheckpoint, testing::ValuesIn(tests::sharding_meshes()),
                         [](const auto& each) { return each.param.name(); });

}  // namespace
}  // namespace troupe::actors
