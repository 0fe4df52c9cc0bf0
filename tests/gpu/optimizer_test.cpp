#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <tuple>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"

namespace troupe::gpu {

inline void PrintTo(const AdamOptions& of, std::ostream* out) {
  *out << (of.decoupled_weight_decay ? "AdamW" : "Adam") << " at " << of.learning_rate << ", betas "
       << of.beta1 << " and " << of.beta2 << ", epsilon " << of.epsilon << ", decay " << of.weight_decay;
}

inline void PrintTo(const SgdOptions& of, std::ostream* out) {
  *out << "SGD at " << of.learning_rate << (of.nesterov ? ", Nesterov's momentum " : ", momentum ")
       << of.momentum << ", decay " << of.weight_decay;
}

namespace {

using core::DType;

/// Parameters and optimizer state of one test, all fp32, and the rounded copy.
struct State {
  State(Place& place, std::size_t count, DType dtype)
      : master(place, DType::f32, mixed_numbers(count, 21)),
        first(place, DType::f32, count),
        second(place, DType::f32, count),
        parameter(place, dtype, count) {}

  ParameterStep step(const Vector& gradient, float factor, std::size_t begin, std::size_t length) {
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
  expect_same(found.master, values);
  std::vector<float> copied = values;
  for (float& value : copied) value = rounded(dtype, value);
  expect_same(found.parameter, copied);
}

class OptimizerStep : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }
  State state(std::size_t count) { return {place(), count, DType::f32}; }
};

template <class Options>
class Optimizer : public testing::TestWithParam<std::tuple<PlaceUnderTest, Options>>, protected AtPlace {
 protected:
  void SetUp() override { open(std::get<0>(this->GetParam())); }
  const Options& options() const { return std::get<1>(this->GetParam()); }
};

template <class Suite>
std::string place_and_index(const testing::TestParamInfo<Suite>& under_test) {
  return std::get<0>(under_test.param).name + "_" + std::to_string(under_test.index);
}

class Adam : public Optimizer<AdamOptions> {
 protected:
  void step(int number, State& state, const Vector& gradient, std::size_t begin, std::size_t length) {
    const ParameterStep parameter = state.step(gradient, 0.7F, begin, length);
    const AdamMoments moments{state.first_part(begin, length), state.second_part(begin, length)};
    run([&](auto... stream) { adam_step(options(), number, parameter, moments, stream...); });
  }
};

TEST_P(Adam, GivesItsFormulasBitsForAnyCountAndCut) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::size_t count : {1, 7, 8, 9, 513, 1300}) {
      State whole(place(), count, dtype);
      State pieces(place(), count, dtype);
      std::vector<float> value = whole.master.values();
      std::vector<float> first(count);
      std::vector<float> second(count);

      for (int number = 1; number <= 3; ++number) {
        const auto gradient = vector(dtype, mixed_numbers(count, 100U + static_cast<std::uint32_t>(number)));
        step(number, whole, gradient, 0, count);
        for (std::size_t begin = 0; begin < count; begin += 5) {
          step(number, pieces, gradient, begin, std::min<std::size_t>(5, count - begin));
        }
        const auto gradients = gradient.values();
        for (std::size_t i = 0; i < count; ++i) {
          reference_adam(options(), number, gradients[i] * 0.7F, value[i], first[i], second[i]);
        }
      }

      expect_state(whole, value, dtype);
      expect_state(pieces, value, dtype);
      expect_same(whole.first, first);
      expect_same(whole.second, second);
      expect_same(pieces.first, first);
      expect_same(pieces.second, second);
    }
  }
}

TEST_P(Adam, FollowsTheFormulaInDouble) {
  double value = 0.75;
  double first = 0;
  double second = 0;
  State state(place(), 1, DType::f32);
  state.master.assign(std::vector<float>{0.75F});

  for (int number = 1; number <= 50; ++number) {
    const float g = std::sin(static_cast<float>(number));
    const auto gradient = vector(DType::f32, std::vector<float>{g});
    const ParameterStep parameter = state.step(gradient, 1, 0, 1);
    run([&](auto... stream) {
      adam_step(options(), number, parameter, {state.first.view(), state.second.view()}, stream...);
    });
    (void)gradient.values();  // it must outlive its step
    reference_adam(options(), number, static_cast<double>(g), value, first, second);
  }

  EXPECT_NEAR(state.master.values()[0], value, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Options, Adam,
    testing::Combine(
        testing::ValuesIn(places_under_test()),
        testing::Values(
            AdamOptions{.learning_rate = 0.01}, AdamOptions{.learning_rate = 0.01, .weight_decay = 0.1},
            AdamOptions{.learning_rate = 0.01, .weight_decay = 0.1, .decoupled_weight_decay = false},
            AdamOptions{.learning_rate = 0.02, .beta1 = 0.3, .beta2 = 0.95, .epsilon = 1e-6})),
    place_and_index<Adam::ParamType>);

TEST_P(OptimizerStep, AdamMovesByTheLearningRateAtFirst) {
  State three = state(3);
  three.master.assign(std::vector<float>(3, 1.0F));
  const auto gradient = vector(DType::f32, std::vector<float>{0.5F, -0.5F, 0.0F});

  run([&](auto... stream) {
    adam_step({.learning_rate = 0.125, .epsilon = 0}, 1, three.step(gradient, 1, 0, 2),
              {three.first_part(0, 2), three.second_part(0, 2)}, stream...);
  });

  const auto master = three.master.values();
  EXPECT_NEAR(master[0], 0.875F, 1e-7);
  EXPECT_NEAR(master[1], 1.125F, 1.2e-7);
  EXPECT_EQ(master[2], 1.0F) << "beyond the range that was stepped";
}

TEST_P(OptimizerStep, AdamWorksOnTheParameterItselfInFp32) {
  State both = state(100);
  State alone = state(100);
  const auto gradient = vector(DType::f32, mixed_numbers(100, 5));
  ParameterStep step = alone.step(gradient, 1, 0, 100);
  step.parameter = {};

  run([&](auto... stream) {
    adam_step({}, 1, both.step(gradient, 1, 0, 100), {both.first.view(), both.second.view()}, stream...);
    adam_step({}, 1, step, {alone.first.view(), alone.second.view()}, stream...);
  });

  expect_same(alone.master, both.parameter.values());
}

TEST_P(OptimizerStep, MayLeaveZerosInPlaceOfItsGradient) {
  constexpr std::size_t kBegin = 3, kLength = 1210, kCount = 1300;
  constexpr MatrixShape kShape{.rows = 11, .columns = 110};
  const Buffer scratch = place().allocate(muon_scratch_bytes(kShape));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (int kind = 0; kind < 4; ++kind) {
      const auto numbers = mixed_numbers(kCount, 7);
      const auto step = [&](State& state, bool clears) {
        auto gradient = vector(dtype, numbers);
        auto parameter = state.step(gradient, 0.7F, kBegin, kLength);
        if (clears) parameter.cleared = gradient.elements().part(kBegin, kLength).view;
        const auto first = state.first_part(kBegin, kLength);
        run([&](auto... stream) {
          if (kind == 0) sgd_step({.learning_rate = 0.1, .momentum = 0.9}, parameter, first, stream...);
          if (kind == 1) adam_step({}, 1, parameter, {first, state.second_part(kBegin, kLength)}, stream...);
          if (kind == 2) lion_step({}, parameter, first, stream...);
          if (kind == 3) muon_step({}, kShape, parameter, first, scratch.view(), stream...);
        });
        return gradient.values();
      };
      State kept = state(kCount);
      State cleared = state(kCount);

      const auto before = step(kept, false);
      const auto after = step(cleared, true);

      expect_same(cleared.master, kept.master.values());
      expect_same(cleared.parameter, kept.parameter.values());
      for (std::size_t i = 0; i < kCount; ++i) {
        const bool is_stepped = i >= kBegin && i < kBegin + kLength;
        ASSERT_EQ(after[i], is_stepped ? 0.0F : before[i]) << i << " of kind " << kind;
      }
    }
  }
}

class Sgd : public Optimizer<SgdOptions> {
 protected:
  void step(State& state, const Vector& gradient, std::size_t begin, std::size_t length) {
    const ParameterStep parameter = state.step(gradient, 0.7F, begin, length);
    const BufferView momentum = options().momentum != 0 ? state.first_part(begin, length) : BufferView{};
    run([&](auto... stream) { sgd_step(options(), parameter, momentum, stream...); });
  }
};

TEST_P(Sgd, GivesItsFormulasBitsForAnyCountAndCut) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::size_t count : {1, 7, 8, 9, 513, 1300}) {
      State whole(place(), count, dtype);
      State pieces(place(), count, dtype);
      std::vector<float> value = whole.master.values();
      std::vector<float> velocity(count);

      for (std::uint32_t number = 1; number <= 3; ++number) {
        const auto gradient = vector(dtype, mixed_numbers(count, 200 + number));
        step(whole, gradient, 0, count);
        for (std::size_t begin = 0; begin < count; begin += 5) {
          step(pieces, gradient, begin, std::min<std::size_t>(5, count - begin));
        }
        const auto gradients = gradient.values();
        for (std::size_t i = 0; i < count; ++i) {
          reference_sgd(options(), gradients[i] * 0.7F, value[i], velocity[i]);
        }
      }

      expect_state(whole, value, dtype);
      expect_state(pieces, value, dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, Sgd,
    testing::Combine(testing::ValuesIn(places_under_test()),
                     testing::Values(SgdOptions{.learning_rate = 0.1},
                                     SgdOptions{.learning_rate = 0.1, .momentum = 0.9},
                                     SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                                     SgdOptions{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true})),
    place_and_index<Sgd::ParamType>);

TEST_P(OptimizerStep, SgdGivesKnownValuesWithMomentum) {
  State one = state(1);
  one.master.assign(std::vector<float>{1});
  const auto gradient = vector(DType::f32, std::vector<float>{2});
  const SgdOptions options{.learning_rate = 0.25, .momentum = 0.5};
  const auto step = [&] {
    run([&](auto... stream) { sgd_step(options, one.step(gradient, 1, 0, 1), one.first.view(), stream...); });
    return one.master.values()[0];
  };

  EXPECT_EQ(step(), 0.5F);
  EXPECT_EQ(step(), -0.25F);
}

INSTANTIATE_TEST_SUITE_P(Places, OptimizerStep, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
