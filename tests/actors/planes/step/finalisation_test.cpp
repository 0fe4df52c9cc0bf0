#include "actors/planes/step/finalisation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/dtype.hpp"
#include "core/program/program_text.hpp"
#include "core/random.hpp"
#include "tests/actors/planes/step/planes.hpp"

namespace troupe::actors {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kFinalElements = 384;

float bf16_of(float value) {
  return core::bf16_to_float(core::float_to_bf16(value));
}

float drawn(int rank, std::size_t element) {
  return core::CounterRandom(11, "finalisation", {0}, {rank}).uniform(element) - 0.25F;
}

core::TrainingOptions fast(core::Strategy strategy) {
  core::TrainingOptions options;
  options.strategy = strategy;
  options.numerics = core::Numerics::fast;
  return options;
}

/// What a rank has of the reduced gradient of parameter 0, with the place of each value in the parameter.
template <class Value, class Each>
void each_reduced(Planes& planes, int rank, Each each) {
  const auto held = planes.plan.held(core::TensorRole::optimizer, {0}, {rank});
  const auto resting = planes[rank].tensors().reduced_gradient({0});
  const auto values = resting.memory.template as<Value>();
  const auto start = std::max(held.start, resting.range.start);
  const auto end = std::min({held.end, resting.range.end, kFinalElements});
  for (auto at = start; at < end; ++at)
    each(static_cast<std::size_t>(at), values[static_cast<std::size_t>(at - resting.range.start)]);
}

struct Mesh {
  core::Strategy strategy;
  int ranks = 2;
  int instances = 1;
};

const Mesh kMeshes[] = {{core::Strategy::ddp, 3},      {core::Strategy::zero1, 3},
                        {core::Strategy::zero1, 4, 2}, {core::Strategy::zero2, 3},
                        {core::Strategy::zero3, 3},    {core::Strategy::hsdp, 6, 2},
                        {core::Strategy::hfsdp, 6, 3}};

// Covers buffer-3, reduce-12.
TEST(AverageInCollective, GivesTheMeanOnEveryMesh) {
  for (const auto& mesh : kMeshes) {
    auto options = fast(mesh.strategy);
    options.optimizer_instances = mesh.instances;
    options.average_in_collective = true;
    core::ParameterSpec w{"w", {kFinalElements}};
    w.unit = core::UnitIndex{0};
    Planes planes(plan_training({w}, options, {mesh.ranks}).value());
    for (int rank = 0; rank < mesh.ranks; ++rank) {
      auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<float>();
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = drawn(rank, i);
    }

    planes.reduce();

    std::int64_t seen = 0;
    for (int rank = 0; rank < mesh.ranks; ++rank) {
      each_reduced<float>(planes, rank, [&](std::size_t i, float found) {
        double mean = 0;
        for (int peer = 0; peer < mesh.ranks; ++peer)
          mean += static_cast<double>(drawn(peer, i)) / mesh.ranks;
        ASSERT_NEAR(found, mean, 1e-6)
            << core::name_of(mesh.strategy) << " rank " << rank << " element " << i;
        ++seen;
      });
    }
    EXPECT_GE(seen, kFinalElements) << core::name_of(mesh.strategy);
    const auto lines = core::lines(planes[0].program().program());
    EXPECT_THAT(lines, Contains(HasSubstr(" average after")));
    EXPECT_EQ(
        std::ranges::count_if(lines, [](const auto& line) { return line.find("average") != line.npos; }),
        mesh.instances > 1 ? 2 : 1)
        << "each reduction, and nothing else";
  }
}

/// Dividing before costs each rank a rounding, dividing afterwards none.
TEST(AverageInCollective, DividesTheSumBeforeItIsRounded) {
  for (const bool in_collective : {false, true}) {
    auto options = fast(core::Strategy::ddp);
    options.gradients_in_parameter_dtype = true;
    options.average_in_collective = in_collective;
    Planes planes(plan_training({{"w", {kFinalElements}, core::DType::bf16}}, options, {3}).value());
    for (int rank = 0; rank < 3; ++rank) {
      auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<std::uint16_t>();
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = core::float_to_bf16(drawn(rank, i));
    }

    planes.reduce();

    int differ = 0;
    each_reduced<std::uint16_t>(planes, 0, [&](std::size_t i, std::uint16_t found) {
      float sum = 0;
      for (int rank = 0; rank < 3; ++rank) sum += bf16_of(drawn(rank, i));
      differ += core::bf16_to_float(found) == bf16_of(sum / 3) ? 0 : 1;
    });
    if (in_collective) {
      EXPECT_EQ(differ, 0);
    } else {
      EXPECT_GT(differ, 20) << "otherwise this test could not tell";
    }
  }
}

TEST(AverageInCollective, DividesByAllLanesOfARankWithSeveral) {
  auto options = fast(core::Strategy::ddp);
  options.lanes = 6;
  options.average_in_collective = true;
  Planes planes(plan_training({{"w", {kFinalElements}}}, options, {2}).value());
  for (int rank = 0; rank < 2; ++rank)
    std::ranges::fill(planes[rank].tensors().gradient({0}, {3 * rank}).as<float>(),
                      6.0F * static_cast<float>(rank + 1));

  planes.reduce();

  // 6 and 12 over six lanes.
  each_reduced<float>(planes, 0, [&](std::size_t, float found) { ASSERT_EQ(found, 3.0F); });
}

/// Megatron-Core's param_name_patterns_for_fp32_local_accumulation.
// Covers buffer-9, buffer-11, buffer-13.
TEST(F32Gradients, AreSummedInF32AndRoundedWhenSent) {
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero2}) {
    auto options = fast(strategy);
    options.average = false;
    options.gradients_in_parameter_dtype = true;
    options.f32_gradients = {"*.norm"};
    core::ParameterSpec norm{"layer.norm", {kFinalElements}, core::DType::bf16};
    core::ParameterSpec matrix{"layer.matrix", {kFinalElements}, core::DType::bf16};
    norm.unit = matrix.unit = core::UnitIndex{0};
    Planes planes(plan_training({norm, matrix}, options, {2}).value());
    EXPECT_EQ(planes[0].tensors().gradient({1}, {0}).bytes, kFinalElements * 2)
        << "the others are as they were";
    for (int rank = 0; rank < 2; ++rank) {
      auto gradient = planes[rank].tensors().gradient({0}, {rank}).as<float>();
      ASSERT_EQ(gradient.size(), static_cast<std::size_t>(kFinalElements));
      // Each addition is below what bf16 could add to 1.
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = 1;
        for (int microbatch = 0; microbatch < 8; ++microbatch) gradient[i] += 0.001F * drawn(rank, i);
      }
    }

    planes.reduce();

    int above_one = 0;
    const auto sent = [](int rank, std::size_t i) {
      float sum = 1;
      for (int microbatch = 0; microbatch < 8; ++microbatch) sum += 0.001F * drawn(rank, i);
      return bf16_of(sum);
    };
    for (int rank = 0; rank < 2; ++rank) {
      each_reduced<float>(planes, rank, [&](std::size_t i, float found) {
        // With ddp the sum is sent on, rounded once more.
        const float sum = sent(0, i) + sent(1, i);
        ASSERT_EQ(found, strategy == core::Strategy::ddp ? bf16_of(sum) : sum)
            << core::name_of(strategy) << " rank " << rank << " element " << i;
        above_one += found != 2 ? 1 : 0;
      });
    }
    EXPECT_GT(above_one, 20) << "otherwise bf16 would have done as well";
  }
}

std::string refusal(const std::function<void(core::TrainingOptions&)>& change) {
  auto options = fast(core::Strategy::zero1);
  change(options);
  const auto plan = plan_training({{"layers.0.norm", {kFinalElements}, core::DType::bf16}}, options, {2});
  return plan ? "" : plan.error().message;
}

// Covers buffer-10.
TEST(Finalisation, RefusesWhatDoesNotFitTogether) {
  EXPECT_THAT(refusal([](auto& o) { o.large_gradient_factor = 0.5; }),
              HasSubstr("give a factor from 1, or 0"));
  EXPECT_THAT(refusal([](auto& o) { o.large_gradient_factor = std::nan(""); }), HasSubstr("give a factor"));
  EXPECT_THAT(refusal([](auto& o) {
                o.average_in_collective = true;
                o.numerics = core::Numerics::ordered;
              }),
              HasSubstr("for fast numerics"));
  EXPECT_THAT(refusal([](auto& o) {
                o.average_in_collective = true;
                o.average = false;
              }),
              HasSubstr("gradients are summed"));
  EXPECT_THAT(refusal([](auto& o) {
                o.average_in_collective = true;
                o.wire_dtype = core::DType::bf16;
              }),
              HasSubstr("are summed by their receivers"));
  EXPECT_THAT(refusal([](auto& o) { o.f32_gradients = {"*"}; }), HasSubstr("all gradients are kept in f32"));
  EXPECT_THAT(refusal([](auto& o) {
                o.gradients_in_parameter_dtype = true;
                o.f32_gradients = {"*.norm", "*.bias"};
              }),
              HasSubstr("asked for '*.bias', which is the name of no parameter, as in 'layers.0.norm'"));
}

TEST(Finalisation, PatternsAreThoseOfAShell) {
  const auto is_f32 = [](const char* name, const char* pattern) {
    core::TrainingOptions options;
    options.gradients_in_parameter_dtype = true;
    options.f32_gradients = {pattern};
    return gradient_dtype_of({name, {1}, core::DType::bf16}, options) == core::DType::f32;
  };

  EXPECT_TRUE(is_f32("a.norm", "a.norm"));
  EXPECT_TRUE(is_f32("a.norm", "*"));
  EXPECT_TRUE(is_f32("a.norm", "a.*m"));
  EXPECT_TRUE(is_f32("a.norm", "?.n??m"));
  EXPECT_TRUE(is_f32("layers.10.norm.weight", "layers.*.norm*"));
  EXPECT_TRUE(is_f32("aab", "*ab"));
  EXPECT_FALSE(is_f32("a.norm", "a.nor"));
  EXPECT_FALSE(is_f32("a.norm", "norm"));
  EXPECT_FALSE(is_f32("a.norm", "?"));
  EXPECT_FALSE(is_f32("a.norm", ""));
}

TEST(Finalisation, IsNamedInTheProgram) {
  auto options = fast(core::Strategy::zero1);
  options.clip_norm = 1;
  options.large_gradient_factor = 10;
  const auto lines_of = [](const core::TrainingOptions& given) {
    return core::lines(
        core::plan_program(plan_training({{"w", {kFinalElements}}}, given, {2}).value().inputs, {0}).value());
  };

  const auto lines = lines_of(options);
  EXPECT_EQ(std::vector(lines.end() - 3, lines.end()),
            (std::vector<std::string>{"finish: check_finite", "finish: clip", "finish: check_large"}));
  EXPECT_THAT(lines_of(fast(core::Strategy::zero1)), Not(Contains("finish: clip")));
}

}  // namespace
}  // namespace troupe::actors
