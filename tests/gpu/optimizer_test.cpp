#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

/// Parameters and optimizer state of one test, all fp32, and the rounded copy.
struct State {
  explicit State(std::size_t count, DType dtype = DType::bf16)
      : master(DType::f32, mixed_numbers(count, 21)),
        first(DType::f32, count),
        second(DType::f32, count),
        parameter(dtype, count) {}

  ParameterStep step(Vector& gradient, float factor, std::size_t begin, std::size_t length) {
    return {.gradient = gradient.elements().part(begin, length),
            .gradient_factor = factor,
            .master = master.elements().part(begin, length).view,
            .parameter = parameter.elements().part(begin, length)};
  }
  BufferView first_part(std::size_t begin, std::size_t length) {
    return first.elements().part(begin, length).view;
  }
  BufferView second_part(std::size_t begin, std::size_t length) {
    return second.elements().part(begin, length).view;
  }

  Vector master;
  Vector first;
  Vector second;
  Vector parameter;
};

/// torch.optim.Adam and AdamW for one element, in `Real`.
template <class Real>
void reference_adam(const AdamOptions& o, int step, Real gradient, Real& value, Real& first, Real& second) {
  if (o.decoupled_weight_decay) {
    value = value * static_cast<Real>(1 - o.learning_rate * o.weight_decay);
  } else if (o.weight_decay != 0) {
    gradient = gradient + static_cast<Real>(o.weight_decay) * value;
  }
  const auto weight = static_cast<Real>(1 - o.beta1);
  first =
      weight < Real(0.5) ? first + weight * (gradient - first) : gradient - (gradient - first) * (1 - weight);
  second = second * static_cast<Real>(o.beta2) + static_cast<Real>(1 - o.beta2) * gradient * gradient;
  const double correction1 = 1 - std::pow(o.beta1, step);
  const double correction2 = 1 - std::pow(o.beta2, step);
  const Real denominator =
      std::sqrt(second) / static_cast<Real>(std::sqrt(correction2)) + static_cast<Real>(o.epsilon);
  value = value + static_cast<Real>(-(o.learning_rate / correction1)) * first / denominator;
}

template <class Real>
void reference_sgd(const SgdOptions& o, Real gradient, Real& value, Real& velocity) {
  if (o.weight_decay != 0) gradient = gradient + static_cast<Real>(o.weight_decay) * value;
  if (o.momentum != 0) {
    velocity = static_cast<Real>(o.momentum) * velocity + gradient;
    gradient = o.nesterov ? gradient + static_cast<Real>(o.momentum) * velocity : velocity;
  }
  value = value + static_cast<Real>(-o.learning_rate) * gradient;
}

void expect_state(const State& found, const std::vector<float>& values, DType dtype) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(same(found.master[i], values[i]))
        << i << ": " << found.master[i] << ", expected " << values[i];
    ASSERT_TRUE(same(found.parameter[i], rounded(dtype, values[i]))) << i;
  }
}

class Adam : public testing::TestWithParam<AdamOptions> {};

TEST_P(Adam, GivesTheBitsOfItsFormulaForAnyCountDtypeAndCut) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::size_t count : {1, 7, 8, 9, 513, 1300}) {
      State whole(count, dtype);
      State pieces(count, dtype);
      std::vector<float> value(count);
      std::vector<float> first(count);
      std::vector<float> second(count);
      for (std::size_t i = 0; i < count; ++i) value[i] = whole.master[i];

      for (int step = 1; step <= 3; ++step) {
        Vector gradient(dtype, mixed_numbers(count, 100U + static_cast<std::uint32_t>(step)));
        adam_step(GetParam(), step, whole.step(gradient, 0.7F, 0, count),
                  {whole.first.view(), whole.second.view()});
        for (std::size_t begin = 0; begin < count; begin += 5) {
          const std::size_t length = std::min<std::size_t>(5, count - begin);
          adam_step(GetParam(), step, pieces.step(gradient, 0.7F, begin, length),
                    {pieces.first_part(begin, length), pieces.second_part(begin, length)});
        }
        for (std::size_t i = 0; i < count; ++i) {
          reference_adam(GetParam(), step, gradient[i] * 0.7F, value[i], first[i], second[i]);
        }
      }

      expect_state(whole, value, dtype);
      expect_state(pieces, value, dtype);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same(whole.first[i], first[i]) && same(whole.second[i], second[i]));
        ASSERT_TRUE(same(pieces.first[i], first[i]) && same(pieces.second[i], second[i]));
      }
    }
  }
}

TEST_P(Adam, FollowsTheFormulaInDouble) {
  double value = 0.75;
  double first = 0;
  double second = 0;
  State state(1, DType::f32);
  state.master.view().as<float>()[0] = 0.75F;

  for (int step = 1; step <= 50; ++step) {
    const float g = std::sin(static_cast<float>(step));
    Vector gradient(DType::f32, std::vector<float>{g});
    adam_step(GetParam(), step, state.step(gradient, 1, 0, 1), {state.first.view(), state.second.view()});
    reference_adam(GetParam(), step, static_cast<double>(g), value, first, second);
  }

  EXPECT_NEAR(state.master[0], value, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Options, Adam,
    testing::Values(AdamOptions{.learning_rate = 0.01},
                    AdamOptions{.learning_rate = 0.01, .weight_decay = 0.1},
                    AdamOptions{.learning_rate = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = false},
                    AdamOptions{.learning_rate = 0.02, .beta1 = 0.3, .beta2 = 0.95, .epsilon = 1e-6}));

TEST(AdamStep, MovesByTheLearningRateInTheFirstStep) {
  State state(3, DType::f32);
  const auto master = state.master.view().as<float>();
  std::fill(master.begin(), master.end(), 1.0F);
  Vector gradient(DType::f32, std::vector<float>{0.5F, -0.5F, 0.0F});

  adam_step({.learning_rate = 0.125, .epsilon = 0}, 1, state.step(gradient, 1, 0, 2),
            {state.first_part(0, 2), state.second_part(0, 2)});

  EXPECT_NEAR(state.master[0], 0.875F, 1e-7);
  EXPECT_NEAR(state.master[1], 1.125F, 1.2e-7);
  EXPECT_EQ(state.master[2], 1.0F) << "beyond the range that was stepped";
}

TEST(AdamStep, WorksOnTheParameterItselfWhenThatIsFp32) {
  State state(100, DType::f32);
  State alone(100, DType::f32);
  Vector gradient(DType::f32, mixed_numbers(100, 5));
  ParameterStep step = alone.step(gradient, 1, 0, 100);
  step.parameter = {};

  adam_step({}, 1, state.step(gradient, 1, 0, 100), {state.first.view(), state.second.view()});
  adam_step({}, 1, step, {alone.first.view(), alone.second.view()});

  for (std::size_t i = 0; i < 100; ++i) ASSERT_TRUE(same(alone.master[i], state.parameter[i]));
}

class Sgd : public testing::TestWithParam<SgdOptions> {};

TEST_P(Sgd, GivesTheBitsOfItsFormulaForAnyCountDtypeAndCut) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::size_t count : {1, 7, 8, 9, 513, 1300}) {
      const bool has_momentum = GetParam().momentum != 0;
      State whole(count, dtype);
      State pieces(count, dtype);
      std::vector<float> value(count);
      std::vector<float> velocity(count);
      for (std::size_t i = 0; i < count; ++i) value[i] = whole.master[i];

      for (std::uint32_t step = 1; step <= 3; ++step) {
        Vector gradient(dtype, mixed_numbers(count, 200 + step));
        sgd_step(GetParam(), whole.step(gradient, 0.7F, 0, count),
                 has_momentum ? whole.first.view() : BufferView{});
        for (std::size_t begin = 0; begin < count; begin += 5) {
          const std::size_t length = std::min<std::size_t>(5, count - begin);
          sgd_step(GetParam(), pieces.step(gradient, 0.7F, begin, length),
                   has_momentum ? pieces.first_part(begin, length) : BufferView{});
        }
        for (std::size_t i = 0; i < count; ++i) {
          reference_sgd(GetParam(), gradient[i] * 0.7F, value[i], velocity[i]);
        }
      }

      expect_state(whole, value, dtype);
      expect_state(pieces, value, dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, Sgd,
    testing::Values(SgdOptions{.learning_rate = 0.1}, SgdOptions{.learning_rate = 0.1, .momentum = 0.9},
                    SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                    SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}));

TEST(SgdStep, KnownValuesWithMomentum) {
  State state(1, DType::f32);
  state.master.view().as<float>()[0] = 1;
  Vector gradient(DType::f32, std::vector<float>{2});
  const SgdOptions options{.learning_rate = 0.25, .momentum = 0.5};

  sgd_step(options, state.step(gradient, 1, 0, 1), state.first.view());
  EXPECT_EQ(state.master[0], 0.5F);
  sgd_step(options, state.step(gradient, 1, 0, 1), state.first.view());
  EXPECT_EQ(state.master[0], -0.25F);
}

}  // namespace
}  // namespace troupe::gpu
