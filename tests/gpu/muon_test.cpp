#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gpu/kernels.hpp"
#include "tests/gpu/host/kernels/numbers.hpp"
#include "tests/gpu/place.hpp"

namespace troupe::gpu {
namespace {

using core::DType;

template <class Real>
using Matrix = std::vector<std::vector<Real>>;

template <class Real>
Matrix<Real> zeros(std::size_t rows, std::size_t columns) {
  return Matrix<Real>(rows, std::vector<Real>(columns));
}

template <class Real>
Matrix<Real> transposed(const Matrix<Real>& matrix) {
  auto out = zeros<Real>(matrix[0].size(), matrix.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    for (std::size_t j = 0; j < matrix[0].size(); ++j) out[j][i] = matrix[i][j];
  }
  return out;
}

template <class Real>
Matrix<Real> product(const Matrix<Real>& a, const Matrix<Real>& b) {
  auto out = zeros<Real>(a.size(), b[0].size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b[0].size(); ++j) {
      for (std::size_t k = 0; k < b.size(); ++k) out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}

template <class Real>
Matrix<Real> blend(Real base_factor, const Matrix<Real>& base, Real factor, const Matrix<Real>& other) {
  auto out = base;
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (std::size_t j = 0; j < out[0].size(); ++j) {
      out[i][j] = base_factor * base[i][j] + factor * other[i][j];
    }
  }
  return out;
}

/// The steps of Newton and Schulz as torch.optim.Muon writes them down, in `Real` but for the norm.
template <class Real>
Matrix<Real> orthogonalised(const MuonOptions& o, const Matrix<Real>& direction) {
  const bool is_tall = direction.size() > direction[0].size();
  auto x = is_tall ? transposed(direction) : direction;
  double squares = 0;
  for (const auto& row : x) {
    double sum = 0;
    for (const Real value : row) sum += static_cast<double>(value) * static_cast<double>(value);
    squares += sum;
  }
  const Real norm = std::max(static_cast<Real>(std::sqrt(squares)), static_cast<Real>(o.epsilon));
  for (auto& row : x) {
    for (Real& value : row) value /= norm;
  }
  const auto [a, b, c] = o.coefficients;
  for (int step = 0; step < o.steps; ++step) {
    const auto gram = product(x, transposed(x));
    const auto polynomial = blend(static_cast<Real>(b), gram, static_cast<Real>(c), product(gram, gram));
    x = blend(static_cast<Real>(a), x, Real{1}, product(polynomial, x));
  }
  return is_tall ? transposed(x) : x;
}

template <class Real>
Real lerp_of(Real start, Real end, Real weight) {
  return weight < Real(0.5) ? start + weight * (end - start) : end - (end - start) * (1 - weight);
}

template <class Real>
void reference_muon(const MuonOptions& o, const Matrix<Real>& gradient, Matrix<Real>& value,
                    Matrix<Real>& momentum) {
  auto direction = gradient;
  for (std::size_t i = 0; i < value.size(); ++i) {
    for (std::size_t j = 0; j < value[0].size(); ++j) {
      momentum[i][j] = lerp_of(momentum[i][j], gradient[i][j], static_cast<Real>(1 - o.momentum));
      direction[i][j] = o.nesterov ? lerp_of(gradient[i][j], momentum[i][j], static_cast<Real>(o.momentum))
                                   : momentum[i][j];
    }
  }
  const auto kept = static_cast<Real>(1 - o.learning_rate * o.weight_decay);
  const auto step = static_cast<Real>(-(o.learning_rate * o.scale));
  value = blend(kept, value, step, orthogonalised(o, direction));
}

template <class Real>
Matrix<Real> matrix_of(MatrixShape shape, const std::vector<float>& values) {
  auto matrix = zeros<Real>(shape.rows, shape.columns);
  for (std::size_t i = 0; i < values.size(); ++i) matrix[i / shape.columns][i % shape.columns] = values[i];
  return matrix;
}

template <class Real>
std::vector<Real> flat(const Matrix<Real>& matrix) {
  std::vector<Real> values;
  for (const auto& row : matrix) values.insert(values.end(), row.begin(), row.end());
  return values;
}

std::vector<float> normal_numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296.0;
    value = static_cast<float>(sum);
  }
  return values;
}

class Muon : public testing::TestWithParam<PlaceUnderTest>, protected AtPlace {
 protected:
  void SetUp() override { open(GetParam()); }

  /// A matrix and what its steps need.
  struct State {
    State(Muon& test, MatrixShape of, DType dtype, const std::vector<float>& values)
        : shape(of),
          master(test.vector(DType::f32, values)),
          momentum(test.vector(DType::f32, of.count())),
          parameter(test.vector(dtype, of.count())),
          scratch(test.place().allocate(muon_scratch_bytes(of))) {}

    MatrixShape shape;
    Vector master;
    Vector momentum;
    Vector parameter;
    Buffer scratch;
  };

  void step(const MuonOptions& options, State& state, DType dtype, const std::vector<float>& gradients,
            float factor = 1) {
    const auto gradient = vector(dtype, gradients);
    const ParameterStep memory{.gradient = gradient.elements(),
                               .gradient_factor = factor,
                               .master = state.master.view(),
                               .parameter = state.parameter.elements()};
    run([&](auto... stream) {
      muon_step(options, state.shape, memory, state.momentum.view(), state.scratch.view(), stream...);
    });
    (void)gradient.values();  // it must outlive its step
  }
};

constexpr MatrixShape kShapes[] = {{1, 1},  {1, 9},  {9, 1},   {2, 2},   {3, 5},   {5, 3},
                                   {4, 16}, {16, 4}, {17, 33}, {33, 17}, {40, 70}, {64, 64}};

TEST_P(Muon, GivesItsFormulasBitsForAnyShapeAndDtype) {
  const MuonOptions plain{.learning_rate = 0.01, .momentum = 0.9, .nesterov = false, .scale = 0.5};
  for (const MuonOptions& options : {MuonOptions{.learning_rate = 0.02}, plain}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const MatrixShape shape : kShapes) {
        SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
        const auto initial = normal_numbers(shape.count(), 1);
        State state(*this, shape, dtype, initial);
        auto value = matrix_of<float>(shape, initial);
        auto momentum = zeros<float>(shape.rows, shape.columns);

        for (std::uint32_t number = 0; number < 3; ++number) {
          auto gradient = normal_numbers(shape.count(), 10 + number);
          for (float& one : gradient) one = rounded(dtype, one);
          step(options, state, dtype, gradient, 0.7F);
          for (float& one : gradient) one *= 0.7F;
          reference_muon(options, matrix_of<float>(shape, gradient), value, momentum);
        }

        auto copied = flat(value);
        for (float& one : copied) one = rounded(dtype, one);
        expect_same(state.master, flat(value));
        expect_same(state.momentum, flat(momentum));
        expect_same(state.parameter, copied);
      }
    }
  }
}

TEST_P(Muon, FollowsTheFormulaInDouble) {
  const MuonOptions options{.learning_rate = 0.02, .scale = 2};
  for (const MatrixShape shape : {MatrixShape{24, 60}, MatrixShape{60, 24}, MatrixShape{32, 32}}) {
    const auto initial = normal_numbers(shape.count(), 2);
    State state(*this, shape, DType::f32, initial);
    auto value = matrix_of<double>(shape, initial);
    auto momentum = zeros<double>(shape.rows, shape.columns);

    for (std::uint32_t number = 0; number < 10; ++number) {
      const auto gradient = normal_numbers(shape.count(), 50 + number);
      step(options, state, DType::f32, gradient);
      reference_muon(options, matrix_of<double>(shape, gradient), value, momentum);
    }

    const auto found = state.master.values();
    const auto expected = flat(value);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << i;
  }
}

/// By hand: the direction is four times 3, of norm 6, so X has four halves; X Xt and its square are the same
/// matrix of halves. The first step makes of a half 2/2 + (-1 + 1/2)/2 = 3/4, the second, whose X Xt is 9/8
/// everywhere and whose square is 81/32, 3/2 + 3/2 (-9/8 + 81/64) = 219/128.
TEST_P(Muon, GivesKnownValues) {
  MuonOptions options{.learning_rate = 0.5,
                      .momentum = 0.5,
                      .weight_decay = 0.5,
                      .scale = 2,
                      .steps = 1,
                      .coefficients = {2, -1, 0.5}};
  State one(*this, {2, 2}, DType::f32, std::vector<float>(4, 1));

  step(options, one, DType::f32, std::vector<float>(4, 4));

  EXPECT_EQ(one.momentum.values(), std::vector<float>(4, 2)) << "half way from 0 to 4";
  EXPECT_EQ(one.master.values(), std::vector<float>(4, 0)) << "1 * 0.75 - 0.5 * 2 * 0.75";

  options.steps = 2;
  State two(*this, {2, 2}, DType::f32, std::vector<float>(4, 1));
  step(options, two, DType::f32, std::vector<float>(4, 4));

  EXPECT_EQ(two.master.values(), std::vector<float>(4, 0.75F - 1.7109375F));
}

TEST_P(Muon, StepsTheTransposedMatrixByTheTransposedStep) {
  const MatrixShape wide{20, 50};
  const MatrixShape tall{50, 20};
  const auto initial = normal_numbers(wide.count(), 3);
  const auto gradient = normal_numbers(wide.count(), 4);
  const auto turned = [&](const std::vector<float>& values) {
    return flat(transposed(matrix_of<float>(wide, values)));
  };
  State one(*this, wide, DType::f32, initial);
  State other(*this, tall, DType::f32, turned(initial));

  step({}, one, DType::f32, gradient);
  step({}, other, DType::f32, turned(gradient));

  expect_same(other.master, turned(one.master.values()));
}

/// The coefficients trade exactness for speed: singular values end between 0.68 and 1.13 (Jordan 2024).
TEST_P(Muon, MovesAlongAnAlmostOrthogonalMatrix) {
  const MatrixShape shape{12, 48};
  State state(*this, shape, DType::f32, std::vector<float>(shape.count()));

  step({.learning_rate = 1, .weight_decay = 0}, state, DType::f32, normal_numbers(shape.count(), 5));

  const auto update = matrix_of<double>(shape, state.master.values());
  const auto gram = product(update, transposed(update));
  double trace = 0;
  for (std::size_t i = 0; i < gram.size(); ++i) {
    double others = 0;
    for (std::size_t j = 0; j < gram.size(); ++j) others += i == j ? 0 : std::abs(gram[i][j]);
    EXPECT_GT(gram[i][i] + others, 0.68 * 0.68);
    EXPECT_LT(gram[i][i], 1.13 * 1.13);
    trace += gram[i][i];
  }
  EXPECT_GT(trace, 12 * 0.68 * 0.68);
  EXPECT_LT(trace, 12 * 1.13 * 1.13);
}

TEST_P(Muon, OnlyDecaysWhereThereIsNoGradient) {
  const MatrixShape shape{3, 4};
  State state(*this, shape, DType::f32, std::vector<float>(12, 1));

  step({.learning_rate = 0.5, .weight_decay = 0.5}, state, DType::f32, std::vector<float>(12));

  expect_same(state.master, std::vector<float>(12, 0.75F));
}

TEST_P(Muon, KeepsWhatIsNotANumber) {
  const MatrixShape shape{2, 3};
  State state(*this, shape, DType::f32, std::vector<float>(6, 1));
  std::vector<float> gradient(6, 1);
  gradient[4] = std::numeric_limits<float>::quiet_NaN();

  step({}, state, DType::f32, gradient);

  for (const float value : state.master.values()) EXPECT_TRUE(std::isnan(value));
}

INSTANTIATE_TEST_SUITE_P(Places, Muon, testing::ValuesIn(places_under_test()),
                         [](const auto& under_test) { return under_test.param.name; });

}  // namespace
}  // namespace troupe::gpu
