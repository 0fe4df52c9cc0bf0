#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

/// Algorithm 2 of the paper for one element, in `Real`.
template <class Real>
void reference_lion(const LionOptions& o, Real gradient, Real& value, Real& moment) {
  value *= static_cast<Real>(1 - o.learning_rate * o.weight_decay);
  const Real direction = static_cast<Real>(o.beta1) * moment + static_cast<Real>(1 - o.beta1) * gradient;
  if (direction > 0) value -= static_cast<Real>(o.learning_rate);
  if (direction < 0) value += static_cast<Real>(o.learning_rate);
  moment = static_cast<Real>(o.beta2) * moment + static_cast<Real>(1 - o.beta2) * gradient;
}

class Lion : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }

  void step(const LionOptions& options, const Vector& gradient, float factor, const Vector& master,
            const Vector& moment, const Vector* parameter, std::size_t first, std::size_t length) {
    const ParameterStep memory{
        .gradient = gradient.elements().part(first, length),
        .gradient_factor = factor,
        .master = master.elements().part(first, length).view,
        .parameter = parameter == nullptr ? Elements{} : parameter->elements().part(first, length)};
    run([&](auto... stream) {
      lion_step(options, memory, moment.elements().part(first, length).view, stream...);
    });
  }
};

TEST_P(Lion, GivesItsFormulasBitsForAnyCountAndCut) {
  const LionOptions options{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::size_t count : {1, 7, 8, 9, 513, 1300}) {
      const auto begin = mixed_numbers(count, 21);
      const auto whole = vector(DType::f32, begin), whole_moment = vector(DType::f32, count);
      const auto pieces = vector(DType::f32, begin), pieces_moment = vector(DType::f32, count);
      const auto parameter = vector(dtype, count), pieces_parameter = vector(dtype, count);
      std::vector<float> value = begin;
      std::vector<float> moment(count);

      for (std::uint32_t number = 0; number < 3; ++number) {
        const auto gradient = vector(dtype, mixed_numbers(count, 100U + number));
        step(options, gradient, 0.7F, whole, whole_moment, &parameter, 0, count);
        for (std::size_t first = 0; first < count; first += 5) {
          step(options, gradient, 0.7F, pieces, pieces_moment, &pieces_parameter, first,
               std::min<std::size_t>(5, count - first));
        }
        const auto gradients = gradient.values();
        for (std::size_t i = 0; i < count; ++i) {
          reference_lion(options, gradients[i] * 0.7F, value[i], moment[i]);
        }
      }

      std::vector<float> copied = value;
      for (float& one : copied) one = rounded(dtype, one);
      expect_same(whole, value);
      expect_same(pieces, value);
      expect_same(whole_moment, moment);
      expect_same(pieces_moment, moment);
      expect_same(parameter, copied);
      expect_same(pieces_parameter, copied);
    }
  }
}

TEST_P(Lion, GivesKnownValues) {
  const LionOptions options{.learning_rate = 0.25, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5};
  const auto master = vector(DType::f32, std::vector<float>{1});
  const auto moment = vector(DType::f32, 1);
  const auto after = [&](float value) {
    const auto gradient = vector(DType::f32, std::vector<float>{value});
    step(options, gradient, 1, master, moment, nullptr, 0, 1);
    return std::pair{master.values()[0], moment.values()[0]};
  };

  EXPECT_EQ(after(2), (std::pair{0.625F, 0.5F})) << "1 * 0.875 - 0.25; 0.25 * 2";
  EXPECT_EQ(after(-1), (std::pair{0.796875F, 0.125F})) << "the mean is -0.25: 0.625 * 0.875 + 0.25";
  EXPECT_EQ(after(-0.125F), (std::pair{0.697265625F, 0.0625F})) << "the mean is 0: only decay";
}

TEST_P(Lion, FollowsTheFormulaInDouble) {
  const LionOptions options{.learning_rate = 0.01, .weight_decay = 0.1};
  double value = 0.75;
  double mean = 0;
  const auto master = vector(DType::f32, std::vector<float>{0.75F});
  const auto moment = vector(DType::f32, 1);

  for (int number = 1; number <= 50; ++number) {
    const float g = std::sin(static_cast<float>(number));
    const auto gradient = vector(DType::f32, std::vector<float>{g});
    step(options, gradient, 1, master, moment, nullptr, 0, 1);
    reference_lion(options, static_cast<double>(g), value, mean);
    EXPECT_NEAR(master.values()[0], value, 2e-6);
    EXPECT_NEAR(moment.values()[0], mean, 2e-6);
  }
}

TEST_P(Lion, KeepsWhatIsNotANumber) {
  const auto master = vector(DType::f32, std::vector<float>(9, 1));
  const auto moment = vector(DType::f32, 9);
  std::vector<float> gradients(9, 1);
  gradients[4] = std::numeric_limits<float>::quiet_NaN();
  const auto gradient = vector(DType::f32, gradients);

  step({.learning_rate = 0.5}, gradient, 1, master, moment, nullptr, 0, 9);

  std::vector<float> expected(9, 0.5F);
  expected[4] = gradients[4];
  expect_same(master, expected);
}

INSTANTIATE_TEST_SUITE_P(Places, Lion, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
