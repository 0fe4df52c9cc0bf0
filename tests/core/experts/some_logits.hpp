#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace troupe::core {

/// Logits (tokens, 8), ((7 t + 5 e + 3 t e) mod 17) / 4 - 2, exact in quarters; none of a token's are equal
/// but those of token 4, which all are. The golden values of these tests were computed with them in NumPy, in
/// float64, from the formulas of Megatron-Core: softmax(x) = exp(x - max) / sum; the choice is argsort(-x,
/// kind="stable")[:, :K]; groups are judged by the sum of their best K / chosen; weights are taken along the
/// choice and divided by their sum.
template <class T>
std::vector<T> some_logits(std::size_t tokens) {
  std::vector<T> logits;
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t e = 0; e < 8; ++e)
      logits.push_back(static_cast<T>((7 * t + 5 * e + 3 * t * e) % 17) / 4 - 2);
  }
  return logits;
}

/// Each element of `gradient` against the central difference of `objective` by the same element of `values`.
inline void expect_gradient(std::span<double> values, std::span<const double> gradient,
                            const std::function<double()>& objective) {
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double kept = values[i];
    values[i] = kept + kStep;
    const double above = objective();
    values[i] = kept - kStep;
    const double below = objective();
    values[i] = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8) << "element " << i;
  }
}

}  // namespace troupe::core
