#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A rank's columns of the logits [rows, vocabulary], row-major, which nothing here modifies.
struct LogitsShard {
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  std::span<const std::byte> bytes;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t first_column = 0;  ///< index in the vocabulary

  /// Errc::invalid_argument if the bytes do not match the shape, or for another dtype.
  Result<void> check() const;
};

/// Sums over the vocabulary, one entry per row, in double whatever the dtype of the logits. With x a row, m
/// its greatest element over all ranks, and e_i = exp(x_i - m):
struct VocabSums {
  std::vector<double> exponentials;  ///< Z = sum of e_i
  std::vector<double> weighted;      ///< T = sum of e_i (x_i - m)
  std::vector<double> targets;       ///< x_y - m; 0 where the target is another rank's column
};

/// Three steps, with two reductions between ranks: the greatest element of every row (to be reduced with
/// MAX), the sums (to be reduced with SUM, all in one message), and the results, which each rank computes
/// alone. `targets` are columns of the vocabulary, or empty if only the entropy is wanted.
std::vector<float> vocab_max(const LogitsShard& logits);
VocabSums vocab_sums(const LogitsShard& logits, std::span<const float> max,
                     std::span<const std::int64_t> targets);

/// H = ln Z - T / Z, which is -sum p_i ln p_i.
std::vector<float> vocab_entropy(const VocabSums& sums);
/// ln p_y = x_y - m - ln Z.
std::vector<float> vocab_log_probabilities(const VocabSums& sums);

/// The loss's gradient by this rank's logits, [rows, columns]; `upstream` is its gradient by the results of
/// the rows. Derivatives of the results: entropy -p_i (x_i - m - T / Z), log-probability (i = y) - p_i.
std::vector<float> vocab_entropy_gradient(const LogitsShard& logits, std::span<const float> max,
                                          const VocabSums& sums, std::span<const float> upstream);
std::vector<float> vocab_log_probability_gradient(const LogitsShard& logits, std::span<const float> max,
                                                  const VocabSums& sums,
                                                  std::span<const std::int64_t> targets,
                                                  std::span<const float> upstream);

/// Moments of the elements of x whose mask is not 0, weighted by it. Ranks add theirs with `+=`, in rank
/// order; then mean and variance are the same on all of them.
struct MaskedSum {
  double weight = 0;  ///< of the mask
  double total = 0;   ///< of x * mask

  MaskedSum& operator+=(const MaskedSum& other) {
    weight += other.weight;
    total += other.total;
    return *this;
  }
};
/// Both have the same length. Elements whose mask is 0 are ignored, even NaN.
MaskedSum masked_sum(std::span<const float> x, std::span<const float> mask);
/// Errc::numeric when the mask is 0 everywhere.
Result<double> masked_mean(const MaskedSum& sum);
/// The second pass: squared deviations from the mean of all ranks.
MaskedSum masked_squares(std::span<const float> x, std::span<const float> mask, double mean);
/// With Bessel's correction, n / (n - 1), if `unbiased`. Errc::numeric if the mask is 0 everywhere, or if n
/// is 1 and the correction is wanted.
Result<double> masked_variance(const MaskedSum& squares, bool unbiased);

}  // namespace troupe::core
