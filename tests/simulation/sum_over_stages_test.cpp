#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/indices.hpp"
#include "tests/simulation/simulated_job.hpp"

// Conditional embedders: parameters that every stage of a pipeline has, and of whose gradient each has a
// part.

namespace troupe::actors {
namespace {

using core::Strategy;

constexpr int kSteps = 3;

struct StagesCase {
  Strategy strategy = Strategy::zero1;
  core::Numerics numerics = core::Numerics::ordered;
  int stages = 2;
  int dp = 2;
  int lanes = 4;
  std::int64_t staging = 0;
};

std::vector<core::ParameterSpec> specs_of_stage(int stage) {
  std::vector<core::ParameterSpec> specs(3 + static_cast<std::size_t>(stage));
  // Stages differ in what they have beside, and in how much of it.
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = fmt::format("own.{}.{}", stage, i);
    specs[i].shape = {5 + static_cast<std::int64_t>(i)};
  }
  for (const std::size_t i : {std::size_t{0}, specs.size() - 1}) {
    specs[i].name = i == 0 ? "embedder.weight" : "embedder.bias";
    specs[i].shape = {i == 0 ? 70 : 9};
    specs[i].also_sum = "pp";
    specs[i].is_copy = stage > 0;
  }
  return specs;
}

/// The last stage has no condition in the second step.
bool is_used(const core::ParameterSpec& spec, int stage, int stages, int step) {
  return spec.also_sum.empty() || stage + 1 < stages || step != 1;
}

float part_of_gradient(const core::ParameterSpec& spec, int stage, int lane, int step, std::size_t element) {
  std::uint64_t key = std::hash<std::string>()(spec.name);
  for (const auto part : {stage, lane, step, static_cast<int>(element)})
    key = (key + static_cast<std::uint64_t>(part) + 1) * 0x9E3779B97F4A7C15ULL;
  const auto bits = static_cast<std::uint32_t>(key >> 33);
  return std::ldexp(static_cast<float>(bits % 100003) - 50000.0F, static_cast<int>(bits % 5) - 20);
}

struct StagesTrained {
  std::map<std::string, std::vector<float>> values;
  std::vector<double> norms;
};

core::Result<StagesTrained> train_stage(SimulatedRank& rank, const StagesCase& job) {
  const int stage = rank.rank().value / job.dp;
  const auto specs = specs_of_stage(stage);
  SessionOptions options;
  auto& training = options.training;
  training.strategy = job.strategy;
  training.numerics = job.numerics;
  training.pipeline_parallel = job.stages;
  training.lanes = job.lanes;
  training.bucket_elements = 8;
  training.staging_elements = job.staging;
  training.unused_parameters = core::UnusedParameters::zeros;
  training.optimizer.kind = core::OptimizerKind::sgd;
  auto session = TRY(Session::join(rank, options, specs));
  for (const auto index : core::indices<core::ParameterIndex>(specs.size())) {
    TRY(session->write_parameter(
        index, [](std::int64_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); }));
  }
  StagesTrained trained;
  for (int step = 0; step < kSteps; ++step) {
    TRY(session->begin_step(1.0));
    for (const core::Lane lane : session->lanes()) {
      TRY(session->begin_lane(lane));
      for (auto i = static_cast<std::uint32_t>(specs.size()); i-- > 0;) {
        TRY(session->before_use({i}));
        if (!is_used(specs[i], stage, job.stages, step)) continue;
        const auto to = TRY(session->gradient({i}));
        for (std::size_t e = 0; e < to.size(); ++e)
          to[e] += part_of_gradient(specs[i], stage, lane.value, step, e);
        TRY(session->gradient_ready({i}));
      }
      TRY(session->end_lane(0));
    }
    trained.norms.push_back(TRY(session->finish_step()).gradient_norm);
  }
  TRY(session->begin_evaluation());
  for (const auto index : core::indices<core::ParameterIndex>(specs.size())) {
    TRY(session->before_use(index));
    const auto values = TRY(session->parameter(index));
    trained.values[specs[index.value].name] = {values.begin(), values.end()};
  }
  TRY(session->end_evaluation());
  TRY(session->leave());
  return trained;
}

/// Neighbours first; one without passes through.
float sum_of_lanes(std::vector<float> terms) {
  for (std::size_t apart = 1; apart < terms.size(); apart *= 2)
    for (std::size_t i = 0; i + apart < terms.size(); i += 2 * apart) terms[i] += terms[i + apart];
  return terms[0];
}

/// What a stage's parameters come to: the lanes of each stage, then the stages in their order, then the
/// scale.
StagesTrained expected_of_stage(const StagesCase& job, int stage) {
  StagesTrained expected;
  const float scale = 1.0F / static_cast<float>(job.lanes);
  for (int step = 0; step < kSteps; ++step) {
    double squares = 0;
    for (int at = 0; at < job.stages; ++at) {
      for (const auto& spec : specs_of_stage(at)) {
        const bool is_shared = !spec.also_sum.empty();
        for (std::size_t e = 0; e < static_cast<std::size_t>(spec.shape[0]); ++e) {
          float sum = 0;
          for (int from = is_shared ? 0 : at; from < (is_shared ? job.stages : at + 1); ++from) {
            std::vector<float> lanes;
            for (int lane = 0; lane < job.lanes; ++lane)
              lanes.push_back(
                  is_used(spec, from, job.stages, step) ? part_of_gradient(spec, from, lane, step, e) : 0.0F);
            const bool is_first = from == (is_shared ? 0 : at);
            sum = is_first ? sum_of_lanes(lanes) : sum + sum_of_lanes(lanes);
          }
          const float gradient = sum * scale;
          if (!spec.is_copy) squares += static_cast<double>(gradient) * static_cast<double>(gradient);
          if (at != stage) continue;
          auto& values = expected.values[spec.name];
          values.resize(static_cast<std::size_t>(spec.shape[0]));
          values[e] -= gradient;
        }
      }
    }
    expected.norms.push_back(std::sqrt(squares));
  }
  return expected;
}

JobOutcome<StagesTrained> run_stages(const StagesCase& job) {
  SimulationOptions simulation;
  simulation.ranks = {job.stages * job.dp};
  simulation.seed = static_cast<std::uint64_t>(job.stages * 16 + job.dp);
  return simulate_job<StagesTrained>(simulation, [&](SimulatedRank& rank) { return train_stage(rank, job); });
}

// Covers finish-3, reduce-5.
TEST(SumOverStages, OfAConditionalEmbedderIsInStageOrderBitwise) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1}) {
    for (const auto& [stages, dp, staging] :
         std::vector<std::tuple<int, int, std::int64_t>>{{2, 1, 0}, {2, 2, 0}, {3, 2, 24}, {2, 4, 0}}) {
      const StagesCase job{.strategy = strategy, .stages = stages, .dp = dp, .staging = staging};
      SCOPED_TRACE(fmt::format("{} stages {} dp {}", core::name_of(strategy), stages, dp));

      const auto outcome = run_stages(job);

      ASSERT_EQ(problems_of(outcome.report), "");
      for (int rank = 0; rank < stages * dp; ++rank) {
        const auto& found = outcome.ranks[static_cast<std::size_t>(rank)];
        const auto expected = expected_of_stage(job, rank / dp);
        EXPECT_EQ(found.values, expected.values) << rank;
        ASSERT_EQ(found.norms.size(), expected.norms.size());
        for (std::size_t step = 0; step < expected.norms.size(); ++step)
          EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-9 * expected.norms[step]) << "counted once";
      }
    }
  }
}

TEST(SumOverStages, InFastNumericsIsTheSameUpToOrder) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1}) {
    const StagesCase job{.strategy = strategy, .numerics = core::Numerics::fast, .stages = 2, .dp = 2};

    const auto outcome = run_stages(job);

    ASSERT_EQ(problems_of(outcome.report), "");
    for (int rank = 0; rank < 4; ++rank) {
      for (const auto& [name, values] : expected_of_stage(job, rank / 2).values) {
        const auto& found = outcome.ranks[static_cast<std::size_t>(rank)].values.at(name);
        for (std::size_t e = 0; e < values.size(); ++e)
          EXPECT_NEAR(found[e], values[e], 1e-5 * std::max(1.0F, std::abs(values[e]))) << name;
      }
    }
  }
}

std::string refusal_of_stages(Strategy strategy, std::int64_t other_extent) {
  SimulationOptions simulation;
  simulation.ranks = {4};
  simulation.seed = 7;
  const auto outcome = simulate_job<bool>(simulation, [=](SimulatedRank& rank) -> core::Result<bool> {
    const int stage = rank.rank().value / 2;
    auto specs = specs_of_stage(stage);
    if (stage == 1) specs[0].shape = {other_extent};
    if (strategy == Strategy::zero2) specs[1].unit = core::UnitIndex{0};
    SessionOptions options;
    options.training.strategy = strategy;
    options.training.pipeline_parallel = 2;
    options.training.lanes = 2;
    auto session = TRY(Session::join(rank, options, specs));
    return true;
  });
  return problems_of(outcome.report);
}

TEST(SumOverStages, WhatCannotBeIsRefusedWhenRanksJoin) {
  EXPECT_THAT(refusal_of_stages(Strategy::zero1, 512), testing::HasSubstr("sum over pp of gradients"));
  EXPECT_THAT(refusal_of_stages(Strategy::zero2, 70), testing::HasSubstr("use ddp or zero1"));
}

}  // namespace
}  // namespace troupe::actors
