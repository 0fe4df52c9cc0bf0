#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

#include "actors/simulation/simulation.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "tests/growth/counted.hpp"

namespace troupe::actors {
namespace {

/// What a rank of a job costs.
struct CostOfARank {
  double allocations = 0;
  double bytes = 0;  ///< allocated, without the memory of its device
  double events = 0;
  double messages = 0;
};

struct GrowingJob {
  core::Strategy strategy;
  int instances = 1;
  int lanes_of_a_rank = 1;
  bool overlap = true;

  friend std::ostream& operator<<(std::ostream& out, const GrowingJob& job) {
    return out << core::name_of(job.strategy) << (job.overlap ? "" : " without overlap") << ", "
               << job.lanes_of_a_rank << " lanes of each rank";
  }
};

CostOfARank cost_of(const GrowingJob& job, int ranks) {
  TinyTrainerOptions trainer;
  trainer.layers = 16;
  trainer.steps = 1;
  trainer.session.training.strategy = job.strategy;
  trainer.session.training.optimizer_instances = job.instances;
  trainer.session.training.lanes = job.lanes_of_a_rank * ranks;
  trainer.session.training.overlap = job.overlap;
  trainer.session.training.bucket_elements = 64;
  SimulationOptions options;
  options.ranks = {ranks};
  Simulation simulation(options);
  const auto before = counted;

  const auto report = simulation.run([&](SimulatedRank& rank) -> core::Result<void> {
    const auto result = simulate_tiny_rank(rank, trainer);
    if (!result) return tl::unexpected(result.error());
    return {};
  });

  EXPECT_TRUE(report.violations.empty());
  for (const auto& result : report.results) EXPECT_TRUE(result.has_value());
  return {static_cast<double>(counted.allocations - before.allocations) / ranks,
          static_cast<double>(counted.allocated - before.allocated) / ranks,
          static_cast<double>(report.events) / ranks, static_cast<double>(report.messages) / ranks};
}

class Growth : public ::testing::TestWithParam<GrowingJob> {};

/// What it costs to take part in a collective may grow with its members in bytes, not in numbers: a job of
/// thousands of ranks is simulated, and each of its processes plans.
TEST_P(Growth, OfAJobCostsEachRankNoMore) {
  const auto few = cost_of(GetParam(), 32);
  const auto many = cost_of(GetParam(), 128);

  EXPECT_LE(many.allocations, 1.02 * few.allocations) << few.allocations;
  EXPECT_LE(many.events, 1.02 * few.events) << few.events;
  EXPECT_LE(many.messages, 1.02 * few.messages) << few.messages;
}

/// What is alike for all members of a collective is said once, and not for each of them.
TEST(GrowthOfZero3, TakesFewBytesForEachMember) {
  constexpr int kUnits = 16;
  const auto few = cost_of({core::Strategy::zero3}, 32);
  const auto many = cost_of({core::Strategy::zero3}, 128);

  EXPECT_LE((many.bytes - few.bytes) / (128 - 32) / kUnits, 120) << few.bytes << " and " << many.bytes;
}

/// Longer than a silence counts as a loss.
TEST(ManyRanks, AreNotTakenForLostWhileAllCompute) {
  TinyTrainerOptions trainer;
  trainer.layers = 1;
  trainer.steps = 1;
  trainer.layer_time = std::chrono::seconds(8);
  SimulationOptions options;
  options.ranks = {512};
  Simulation simulation(options);

  const auto report = simulation.run([&](SimulatedRank& rank) -> core::Result<void> {
    const auto result = simulate_tiny_rank(rank, trainer);
    if (!result) return tl::unexpected(result.error());
    return {};
  });

  EXPECT_TRUE(report.violations.empty());
  for (const auto& result : report.results) EXPECT_TRUE(result.has_value());
}

INSTANTIATE_TEST_SUITE_P(
    , Growth,
    ::testing::Values(GrowingJob{core::Strategy::ddp}, GrowingJob{core::Strategy::zero1},
                      GrowingJob{core::Strategy::zero2}, GrowingJob{core::Strategy::zero3},
                      GrowingJob{core::Strategy::zero3, 1, 2}, GrowingJob{core::Strategy::zero3, 1, 1, false},
                      GrowingJob{core::Strategy::hsdp, 2}, GrowingJob{core::Strategy::hfsdp, 2}));

}  // namespace
}  // namespace troupe::actors
