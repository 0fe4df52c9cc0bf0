#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/load_exchange.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/session/wanted.hpp"
#include "actors/world/simulation/storage.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "tests/growth/counted.hpp"
#include "tests/simulation/still_job.hpp"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::vector<core::ParameterSpec> parameters_of(int count) {
  std::vector<core::ParameterSpec> specs;
  for (int i = 0; i < count; ++i) {
    specs.push_back({fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", i), {8}});
    specs.back().unit = core::UnitIndex{static_cast<std::uint32_t>(i / 64)};
  }
  return specs;
}

StillRank still_rank(core::Strategy strategy, int ranks) {
  StillRank rank;
  auto& training = rank.session.training;
  set_strategy(training, strategy);
  training.lanes = ranks;
  training.bucket_elements = 4096;
  rank.parameters = parameters_of(64);
  return rank;
}

/// What each rank of a job allocates that restores what one rank has saved.
double allocations_of_a_rank(core::Strategy strategy, int ranks) {
  SimulatedStorage disk({});
  SimulationOptions simulation;
  simulation.ranks = {1};
  simulation.storage = &disk;
  const auto saved = simulate_job<StillValues>(
      simulation, [&](SimulatedRank& rank) { return save_still(rank, still_rank(core::Strategy::ddp, 1)); });
  EXPECT_EQ(problems_of(saved.report), "");
  simulation.ranks = {ranks};
  const auto before = counted.allocations;
  const auto restored = simulate_job<StillValues>(
      simulation, [&](SimulatedRank& rank) { return restore_still(rank, still_rank(strategy, ranks)); });
  EXPECT_EQ(problems_of(restored.report), "");
  return static_cast<double>(counted.allocations - before) / ranks;
}

class GrowthOfARestore : public ::testing::TestWithParam<core::Strategy> {};

/// What other ranks request is what this one does, and is judged once.
TEST_P(GrowthOfARestore, CostsEachRankNoMore) {
  const auto few = allocations_of_a_rank(GetParam(), 16);
  const auto many = allocations_of_a_rank(GetParam(), 64);

  EXPECT_LE(many, 1.02 * few) << few;
}

INSTANTIATE_TEST_SUITE_P(, GrowthOfARestore,
                         ::testing::Values(core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3,
                                           core::Strategy::hsdp));

struct LargeJob {
  core::Strategy strategy;
  int ranks = 1024;

  friend std::ostream& operator<<(std::ostream& out, const LargeJob& job) {
    return out << core::name_of(job.strategy) << ", " << job.ranks << " ranks";
  }
};

TrainingPlan plan_of(const LargeJob& job) {
  core::TrainingOptions options;
  set_strategy(options, job.strategy);
  options.lanes = job.ranks;
  options.bucket_elements = 1 << 16;
  return plan_training(parameters_of(40'000 / 3), options, {job.ranks}).value();
}

std::string manifest_text_of(const TrainingPlan& plan) {
  std::vector<core::SaveStructure> structures;
  const auto ranks = static_cast<std::size_t>(plan.world.value);
  const auto distinct = plan.optimizer_is_replicated() ? std::size_t{1} : ranks;
  for (std::size_t rank = 0; rank < distinct; ++rank)
    structures.push_back(state_of(plan, {static_cast<std::int32_t>(rank)}).structure);
  std::vector<const core::SaveStructure*> of_ranks;
  for (std::size_t rank = 0; rank < ranks; ++rank) of_ranks.push_back(&structures[rank % distinct]);
  const auto saved = core::plan_save(of_ranks).value();
  std::vector<core::WrittenShards> written(of_ranks.size());
  for (std::size_t rank = 0; rank < written.size(); ++rank)
    written[rank].hashes.assign(saved.assigned[rank].size(), 7);
  auto manifest = core::manifest_of(of_ranks, saved, written);
  manifest.save = core::hex64(1);
  return core::to_text(manifest);
}

class LargeRestore : public ::testing::TestWithParam<LargeJob> {};

/// What a rank plans of a load, from the manifest's text to who gives what to whom.
TEST_P(LargeRestore, OfFortyThousandKeysFitsIntoEachRank) {
  const auto plan = plan_of(GetParam());
  const auto text = manifest_text_of(plan);
  const core::Rank rank{plan.world.value / 2};
  const auto before = counted.bytes;
  counted.most = before;

  const auto manifest = core::parse_manifest(text).value();
  core::KeyRequests requests{{requested_keys(manifest, plan, true)}, {}};
  requests.of_ranks.assign(static_cast<std::size_t>(plan.world.value), {0});
  core::KeySet stored;
  for (const auto& tensor : manifest.tensors) stored.insert(tensor.key);
  const auto verdict = core::judge_keys(core::Strictness::raise_all, requests, stored);
  auto shared = shared_targets(plan, manifest, true);
  auto load = core::plan_shared_load(manifest, shared).value();
  auto& own = shared.own[static_cast<std::size_t>(rank.value)];
  LoadExchange::Wanted wanted{shared.common, {}};
  wanted.targets.insert(wanted.targets.end(), own.begin(), own.end());
  wanted.memory.resize(wanted.targets.size());
  const auto exchange =
      LoadExchange::create(manifest, std::move(load), rank, plan.world, std::move(wanted), 64 * kMiB);

  ASSERT_TRUE(exchange.has_value());
  EXPECT_FALSE(verdict.error.has_value());
  EXPECT_GE(manifest.tensors.size(), 39'000U);
  EXPECT_LE((counted.most - before) / kMiB, 128U);
}

INSTANTIATE_TEST_SUITE_P(, LargeRestore,
                         ::testing::Values(LargeJob{core::Strategy::ddp}, LargeJob{core::Strategy::zero1},
                                           LargeJob{core::Strategy::zero3}));

}  // namespace
}  // namespace troupe::actors
