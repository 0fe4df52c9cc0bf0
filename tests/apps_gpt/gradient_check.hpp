#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace troupe::apps::gpt {

/// The same numbers on every run, in [-1, 1).
inline std::vector<double> some_values(std::size_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;
  return values;
}

/// A scalar to differentiate: the weighted sum of an output.
inline double weighted_sum(std::span<const double> output, std::span<const double> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < output.size(); ++i) sum += output[i] * weights[i];
  return sum;
}

/// Every element of `gradient` against the central difference of `objective` by the same element of `values`.
inline void expect_gradient(std::span<double> values, std::span<const double> gradient,
                            const std::function<double()>& objective, const std::string& name) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(values.size(), gradient.size()) << name;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double kept = values[i];
    values[i] = kept + kStep;
    const double above = objective();
    values[i] = kept - kStep;
    const double below = objective();
    values[i] = kept;
    const double numeric = (above - below) / (2 * kStep);
    ASSERT_NEAR(gradient[i], numeric, 1e-8 + 1e-6 * std::abs(numeric)) << name << " element " << i;
  }
}

}  // namespace troupe::apps::gpt
