#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "actors/planes/step/rank_program.hpp"
#include "core/errors.hpp"
#include "core/program/overlap.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

using core::OverlapCounts;
using core::Strategy;
using std::chrono::nanoseconds;
using tests::ShardingMesh;

constexpr core::Step kMeasured{1};  ///< the step before it is the warm-up; its gathers end in the one after
constexpr int kSteps = 3;
constexpr std::uint64_t kSeeds = 10;

/// A job of equal units, each a bucket of its own, in which a collective takes far less than a forward.
struct CountedJob {
  ShardingMesh mesh;
  int units = 4;
  int rounds = 2;
  core::Numerics numerics = core::Numerics::fast;
  bool overlap = true;
  int gathered_units = 2;
  core::DeclaredOrder order{};
};

TinyTrainerOptions options_of(const CountedJob& job) {
  TinyTrainerOptions options;
  auto& training = options.session.training;
  training.strategy = job.mesh.strategy;
  training.optimizer_instances = job.mesh.outer;
  training.numerics = job.numerics;
  training.overlap = job.overlap;
  training.gathered_units = job.gathered_units;
  training.lanes = job.mesh.ranks() * job.rounds;
  options.session.order = job.order;
  options.session.trace = true;
  options.steps = kSteps;
  options.layers = job.units;
  options.width = 3 * 256;
  options.layer_time = std::chrono::milliseconds(2);
  training.bucket_elements = options.width + options.width / 3;
  return options;
}

struct Span {
  nanoseconds begin{};
  nanoseconds end{};
};

/// When a rank's trainer computed, by its own watch, and what its tracer wrote down.
struct TracedRank {
  std::vector<Span> passes;
  std::vector<core::TraceEvent> trace;
};

std::vector<TracedRank> run(const CountedJob& job, std::uint64_t seed = 0) {
  SimulationOptions simulation;
  simulation.ranks = {job.mesh.ranks()};
  simulation.seed = seed;
  const auto options = options_of(job);
  auto outcome = simulate_job<TracedRank>(simulation, [&](SimulatedRank& rank) -> core::Result<TracedRank> {
    TracedRank traced;
    auto result = TRY(train_tiny(rank, options, [&](nanoseconds time) {
      const auto begin = rank.device().now();
      rank.compute(time);
      traced.passes.push_back({begin, rank.device().now()});
    }));
    traced.trace = std::move(result.trace);
    return traced;
  });
  EXPECT_EQ(problems_of(outcome.report), "");
  return std::move(outcome.ranks);
}

/// Counts by the names of the collectives' spans. An all_gather moves parameters, unless no rank keeps less
/// than all of them: then it is the second half of an all_reduce.
OverlapCounts count(const TracedRank& rank, const CountedJob& job) {
  const auto first = bucket_flow(kMeasured, {0});
  const auto last = bucket_flow({kMeasured.value + 1}, {0});
  OverlapCounts counts;
  for (const auto& event : rank.trace) {
    if (event.track != "communication" && event.track != "gather") continue;
    if (event.flow < first || event.flow >= last) continue;
    const bool hidden = std::any_of(rank.passes.begin(), rank.passes.end(), [&](const Span& pass) {
      return pass.begin < event.end && event.begin < pass.end;
    });
    const auto operation = event.name.substr(0, event.name.find(' '));
    if (operation == "all_gather" && job.mesh.strategy != Strategy::ddp) {
      counts.gathers += 1;
      counts.hidden_gathers += hidden ? 1 : 0;
    } else if (operation == "reduce_scatter" || operation == "all_to_all") {
      counts.reductions += 1;
      counts.hidden_reductions += hidden ? 1 : 0;
    } else {
      EXPECT_TRUE(operation == "all_reduce" || operation == "all_gather") << event.name;
      counts.all_reduces += 1;
      counts.hidden_all_reduces += hidden ? 1 : 0;
    }
  }
  return counts;
}

OverlapCounts planned(const CountedJob& job, core::Rank rank) {
  const auto options = options_of(job);
  const auto plan =
      plan_training(tiny_parameters(options), options.session.training, {job.mesh.ranks()}, {}, job.order)
          .value();
  return core::overlap_of(RankProgram(plan, rank).program());
}

std::string text_of(const OverlapCounts& c) {
  return fmt::format("gathers {} of {}, reductions {} of {}, all_reduces {} of {}", c.hidden_gathers,
                     c.gathers, c.hidden_reductions, c.reductions, c.hidden_all_reduces, c.all_reduces);
}

struct Expected {
  std::string name;
  CountedJob job;
  OverlapCounts counts;
  friend std::ostream& operator<<(std::ostream& out, const Expected& e) { return out << e.name; }
};

class OverlapCounted : public testing::TestWithParam<Expected> {};

// Covers unit-21, unit-22, unit-29, unit-44.
TEST_P(OverlapCounted, InTheTraceMatchesMeasurementAndProgram) {
  const auto& [name, job, expected] = GetParam();

  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto ranks = run(job, seed);

    for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
      const auto counted = count(ranks[static_cast<std::size_t>(rank)], job);
      ASSERT_EQ(counted, expected) << "seed " << seed << ", rank " << rank << " counts " << text_of(counted);
      ASSERT_EQ(counted, planned(job, {rank})) << "the program has " << text_of(planned(job, {rank}));
    }
  }
}

constexpr auto kOrdered = core::Numerics::ordered;

// Four units and two rounds; then two units and a root, three rounds; then two units, one round and three.
INSTANTIATE_TEST_SUITE_P(
    Steps, OverlapCounted,
    testing::Values(Expected{"zero1",
                             {{Strategy::zero1, 1, 2}},
                             {.gathers = 4, .reductions = 4, .hidden_gathers = 3, .hidden_reductions = 3}},
                    Expected{"zero2",
                             {{Strategy::zero2, 1, 2}},
                             {.gathers = 4, .reductions = 8, .hidden_gathers = 3, .hidden_reductions = 6}},
                    Expected{"zero3",
                             {{Strategy::zero3, 1, 2}},
                             {.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6}},
                    Expected{"zero1_ordered",
                             {{Strategy::zero1, 1, 2}, 4, 2, kOrdered},
                             {.gathers = 4, .reductions = 4, .hidden_gathers = 3, .hidden_reductions = 3}},
                    Expected{"zero2_ordered",
                             {{Strategy::zero2, 1, 2}, 4, 2, kOrdered},
                             {.gathers = 4, .reductions = 8, .hidden_gathers = 3, .hidden_reductions = 6}},
                    Expected{"zero3_ordered_on_four",
                             {{Strategy::zero3, 1, 4}, 4, 2, kOrdered},
                             {.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6}},
                    Expected{"ddp", {{Strategy::ddp, 1, 2}}, {.all_reduces = 4, .hidden_all_reduces = 3}},
                    Expected{
                        "ddp_ordered",
                        {{Strategy::ddp, 1, 2}, 4, 2, kOrdered},
                        {.reductions = 4, .all_reduces = 4, .hidden_reductions = 3, .hidden_all_reduces = 3}},
                    Expected{"hsdp",
                             {{Strategy::hsdp, 2, 2}, 3, 3},
                             {.gathers = 18,
                              .reductions = 9,
                              .all_reduces = 3,
                              .hidden_gathers = 12,
                              .hidden_reductions = 6,
                              .hidden_all_reduces = 2}},
                    Expected{"hfsdp",
                             {{Strategy::hfsdp, 2, 2}, 3, 3},
                             {.gathers = 21, .reductions = 12, .hidden_gathers = 12, .hidden_reductions = 8}},
                    Expected{"zero3_of_two_units",
                             {{Strategy::zero3, 1, 2}, 2, 1},
                             {.gathers = 4, .reductions = 2, .hidden_gathers = 2, .hidden_reductions = 1}},
                    Expected{"zero3_of_two_units_in_three_rounds",
                             {{Strategy::zero3, 1, 2}, 2, 3},
                             {.gathers = 12, .reductions = 6, .hidden_gathers = 6, .hidden_reductions = 3}}),
    [](const auto& tested) { return tested.param.name; });

/// Each row as above for units in the order of their numbers.
TEST(OverlapCounted, ADeclaredOrderHidesAsMuch) {
  const core::DeclaredOrder four{{{2}, {0}, {3}, {1}}, {}};
  const core::DeclaredOrder three{{{1}, {2}, {0}}, {}};
  const std::vector<Expected> rows{
      {"zero2",
       {.mesh = {Strategy::zero2, 1, 2}, .order = four},
       {.gathers = 4, .reductions = 8, .hidden_gathers = 3, .hidden_reductions = 6}},
      {"zero3",
       {.mesh = {Strategy::zero3, 1, 2}, .order = four},
       {.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6}},
      {"zero3_ordered_on_four",
       {.mesh = {Strategy::zero3, 1, 4}, .numerics = kOrdered, .order = four},
       {.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6}},
      {"hsdp",
       {.mesh = {Strategy::hsdp, 2, 2}, .units = 3, .rounds = 3, .order = three},
       {.gathers = 18,
        .reductions = 9,
        .all_reduces = 3,
        .hidden_gathers = 12,
        .hidden_reductions = 6,
        .hidden_all_reduces = 2}},
      {"hfsdp",
       {.mesh = {Strategy::hfsdp, 2, 2}, .units = 3, .rounds = 3, .order = three},
       {.gathers = 21, .reductions = 12, .hidden_gathers = 12, .hidden_reductions = 8}}};
  for (const auto& [name, job, expected] : rows) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto ranks = run(job, seed);

      for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
        const auto counted = count(ranks[static_cast<std::size_t>(rank)], job);
        ASSERT_EQ(counted, expected) << name << ", seed " << seed << " counts " << text_of(counted);
        ASSERT_EQ(counted, planned(job, {rank})) << name;
      }
    }
  }
}

/// Buckets are numbered from the last unit down. Backward has an order of its own here.
// Covers unit-11.
TEST(OverlapCounted, GathersStartInTheDeclaredOrder) {
  const CountedJob job{
      .mesh = {Strategy::zero3, 1, 2}, .rounds = 1, .order = {{{2}, {0}, {3}, {1}}, {{1}, {0}, {2}, {3}}}};

  const auto ranks = run(job);

  for (const auto& rank : ranks) {
    std::vector<std::string> gathers, reductions;
    for (const auto& event : rank.trace) {
      const auto step = bucket_flow({kMeasured.value + 1}, {0});
      if (event.track != "communication" || event.flow < bucket_flow(kMeasured, {0}) || event.flow >= step) {
        continue;
      }
      if (event.name.starts_with("all_gather")) gathers.push_back(event.name);
      if (event.name.starts_with("reduce_scatter")) reductions.push_back(event.name);
    }
    const std::string gather = "all_gather of bucket ", reduce = "reduce_scatter of bucket ";
    EXPECT_EQ(gathers, (std::vector<std::string>{gather + "1", gather + "3", gather + "0", gather + "2",
                                                 gather + "2", gather + "3", gather + "1", gather + "0"}));
    EXPECT_EQ(reductions, (std::vector<std::string>{reduce + "2", reduce + "3", reduce + "1", reduce + "0"}));
  }
}

// Covers ready-6.
TEST(OverlapCounted, OneGatheredUnitOrNoOverlapHidesNothing) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    std::vector<CountedJob> jobs{{.mesh = {strategy, 1, 2}, .overlap = false}};
    if (strategy == Strategy::zero3) jobs.push_back({.mesh = {strategy, 1, 2}, .gathered_units = 1});
    for (const auto& job : jobs) {
      const auto counted = count(run(job)[0], job);

      EXPECT_EQ(counted, planned(job, {0})) << core::name_of(strategy) << ": " << text_of(counted);
      EXPECT_EQ(counted.hidden_gathers + counted.hidden_reductions + counted.hidden_all_reduces, 0)
          << core::name_of(strategy) << ": " << text_of(counted);
    }
  }
}

/// Kernels of two communicators of a full device would wait for each other's other ranks.
// Covers unit-45.
TEST(OverlapCounted, AllCollectivesShareAStreamBesideTheTrainers) {
  const CountedJob job{.mesh = {Strategy::zero3, 1, 2}};

  const auto ranks = run(job);

  std::map<std::string, std::vector<std::string>> tracks;
  for (const auto& event : ranks[0].trace) {
    const auto operation = event.name.substr(0, event.name.find(' '));
    if (operation != "all_gather" && operation != "reduce_scatter") continue;
    if (event.track.starts_with("device")) continue;
    auto& seen = tracks[operation];
    if (std::find(seen.begin(), seen.end(), event.track) == seen.end()) seen.push_back(event.track);
  }
  EXPECT_EQ(tracks["all_gather"], std::vector<std::string>{"communication"});
  EXPECT_EQ(tracks["reduce_scatter"], std::vector<std::string>{"communication"});
}

}  // namespace
}  // namespace troupe::actors
