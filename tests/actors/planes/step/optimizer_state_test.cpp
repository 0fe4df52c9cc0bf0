#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "actors/planes/step/arena.hpp"
#include "actors/planes/step/optimizer_step.hpp"
#include "actors/planes/step/state.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::actors {
namespace {

using core::OptimizerKind;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

core::ParameterSpec parameter(std::string name, std::vector<std::int64_t> shape, std::size_t group,
                              core::DType dtype = core::DType::f32) {
  return {.name = std::move(name), .shape = std::move(shape), .dtype = dtype, .group = group};
}

TrainingPlan plan_of(std::vector<core::ParameterSpec> parameters, std::vector<core::ParameterGroup> groups,
                     int ranks, core::Strategy strategy = core::Strategy::zero1) {
  core::TrainingOptions options;
  options.strategy = strategy;
  options.bucket_elements = 500;
  options.groups = std::move(groups);
  return plan_training(std::move(parameters), options, {ranks}).value();
}

std::vector<core::ParameterGroup> muon_and_adamw() {
  return {{1, {.kind = OptimizerKind::muon}}, {1, {.kind = OptimizerKind::adamw}}};
}

// Covers layout-6, layout-24, whole-19.
TEST(OptimizerState, DecidesWhichParametersShareABuffer) {
  const auto plan = plan_of({parameter("muon", {4, 4}, 0), parameter("adamw", {4}, 1),
                             parameter("momentum", {4}, 2), parameter("adam", {4}, 3),
                             parameter("narrow", {4, 4}, 0, core::DType::bf16), parameter("sgd", {4}, 4)},
                            {{1, {.kind = OptimizerKind::muon}},
                             {1, {.kind = OptimizerKind::adamw}},
                             {1, {.kind = OptimizerKind::sgd, .momentum = 0.5}},
                             {2, {.kind = OptimizerKind::adam}},
                             {1, {.kind = OptimizerKind::sgd}}},
                            2);

  std::vector<std::vector<std::string>> members;
  for (const auto& buffer : plan.buffers) {
    auto& names = members.emplace_back();
    for (const auto p : buffer.parameters) names.push_back(plan.specs[{p}].name);
  }
  EXPECT_THAT(members, ElementsAre(ElementsAre("muon"), ElementsAre("adamw", "adam"), ElementsAre("momentum"),
                                   ElementsAre("narrow"), ElementsAre("sgd")));
}

// Covers state-1, state-2, state-11.
TEST(OptimizerState, IsStoredByTheNamesOfPyTorch) {
  const auto plan = plan_of({parameter("m", {4, 4}, 0), parameter("a", {4}, 1),
                             parameter("l", {4}, 2, core::DType::bf16), parameter("s", {4}, 3)},
                            {{1, {.kind = OptimizerKind::muon}},
                             {1, {.kind = OptimizerKind::adamw}},
                             {1, {.kind = OptimizerKind::lion}},
                             {1, {.kind = OptimizerKind::sgd}}},
                            2);

  EXPECT_THAT(state_keys(plan),
              UnorderedElementsAre("m", "optimizer.state.momentum_buffer.m", "a", "optimizer.state.exp_avg.a",
                                   "optimizer.state.exp_avg_sq.a", "l", "optimizer.state.fp32_param.l",
                                   "optimizer.state.exp_avg.l", "s"));
}

// Covers whole-24, state-15.
TEST(OptimizerState, OfAMuonMatrixIsOnOneRank) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::vector<core::ParameterSpec> parameters{parameter("vector", {501}, 1)};
    for (int i = 0; i < 9; ++i)
      parameters.push_back(parameter("matrix" + std::to_string(i), {10 + i, 23}, 0));
    const auto plan = plan_of(parameters, muon_and_adamw(), ranks);

    for (std::uint32_t p = 1; p < plan.specs.size(); ++p) {
      const auto& place = plan.parameters[{p}];
      int holders = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto held = plan.held(core::TensorRole::optimizer, place.bucket, {rank});
        const auto part = std::min(held.end, place.range.end) - std::max(held.start, place.range.start);
        if (part <= 0) continue;
        EXPECT_EQ(part, place.range.size());
        ++holders;
      }
      EXPECT_EQ(holders, 1) << plan.specs[{p}].name << " on " << ranks << " ranks";
    }
  }
}

TEST(OptimizerState, TakesMemoryForStatesAndTheLargestMatrixsScratch) {
  const auto device = gpu::open_host_device().value();
  const auto bytes = [&](OptimizerKind kind) {
    const auto plan = plan_of({parameter("w", {128, 64}, 0)}, {{1, {.kind = kind}}}, 1, core::Strategy::ddp);
    return Arena::create(*device, plan, RankProgram(plan, {0})).value().taken().total();
  };
  const std::size_t state = 4 * 128 * 64;
  const auto without = bytes(OptimizerKind::sgd);

  EXPECT_EQ(bytes(OptimizerKind::lion), without + state);
  EXPECT_EQ(bytes(OptimizerKind::adamw), without + 2 * state);
  // Beside the floats there is a sum in double of each row of the shorter side.
  EXPECT_EQ(bytes(OptimizerKind::muon), without + state + 4 * 2 * (128 * 64 + 64 * 64) + 8 * 64);
}

TEST(OptimizerState, IsPartOfWhatRanksMustAgreeOn) {
  const auto configuration = [](core::ParameterGroup group) {
    return plan_of({parameter("w", {4, 4}, 0)}, {group}, 1).configuration;
  };
  const core::ParameterGroup muon{1, {.kind = OptimizerKind::muon}};
  auto other = muon;
  other.learning_rate_factor = 2;
  EXPECT_NE(configuration(muon), configuration(other));
  other = muon;
  other.optimizer.scale = core::MuonScale::match_rms_adamw;
  EXPECT_NE(configuration(muon), configuration(other));
  other = muon;
  other.optimizer.momentum = 0.9;
  EXPECT_NE(configuration(muon), configuration(other));
  other = muon;
  other.optimizer.momentum = 0.95;
  EXPECT_EQ(configuration(muon), configuration(other)) << "the default, said aloud";
}

}  // namespace
}  // namespace troupe::actors
