#include "core/models/vocab_parallel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/convert.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

/// Calls visit(row number, its elements) for every row, in fp32.
template <class Visit>
void for_each_row(const LogitsShard& logits, const Visit& visit) {
  const auto columns = static_cast<std::size_t>(logits.columns);
  const auto row_bytes = columns * size_of(logits.dtype);
  std::vector<float> row(columns);
  for (std::size_t i = 0; i < static_cast<std::size_t>(logits.rows); ++i) {
    convert_elements(logits.dtype, logits.bytes.data() + i * row_bytes, DType::f32,
                     reinterpret_cast<std::byte*>(row.data()), columns);
    visit(i, std::span<const float>(row));
  }
}

/// This rank's column for a target; -1 if another rank has it.
std::int64_t own_column(const LogitsShard& logits, std::int64_t target) {
  const auto column = target - logits.first_column;
  return column >= 0 && column < logits.columns ? column : -1;
}

}  // namespace

Result<void> LogitsShard::check() const {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    return fail(Errc::invalid_argument, "logits are f32, bf16 or f16, not {}", name_of(dtype));
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (rows < 0 || columns < 0 || rows > kMost || columns > kMost)
    return fail(Errc::invalid_argument, "logits of {} rows and {} columns", rows, columns);
  const auto expected =
      static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns) * size_of(dtype);
  if (bytes.size() != expected)
    return fail(Errc::invalid_argument, "logits of {} rows and {} columns of {} need {} bytes, they have {}",
                rows, columns, name_of(dtype), expected, bytes.size());
  return {};
}

std::vector<float> vocab_max(const LogitsShard& logits) {
  std::vector<float> max(static_cast<std::size_t>(logits.rows), -std::numeric_limits<float>::infinity());
  for_each_row(logits, [&](std::size_t i, std::span<const float> row) {
    for (const float x : row) max[i] = std::max(max[i], x);
  });
  return max;
}

VocabSums vocab_sums(const LogitsShard& logits, std::span<const float> max,
                     std::span<const std::int64_t> targets) {
  const auto rows = static_cast<std::size_t>(logits.rows);
  CHECK(max.size() == rows && (targets.empty() || targets.size() == rows),
        "every row has a maximum and a target");
  VocabSums sums{std::vector<double>(rows), std::vector<double>(rows), std::vector<double>(rows)};
  for_each_row(logits, [&](std::size_t i, std::span<const float> row) {
    const double m = max[i];
    double z = 0;
    double t = 0;
    for (const float x : row) {
      const double e = std::exp(x - m);
      z += e;
      if (e != 0) t += e * (x - m);  // p ln p is 0 at 0, also where x is -inf
    }
    sums.exponentials[i] = z;
    sums.weighted[i] = t;
    const auto column = targets.empty() ? -1 : own_column(logits, targets[i]);
    if (column >= 0) sums.targets[i] = row[static_cast<std::size_t>(column)] - m;
  });
  return sums;
}

std::vector<float> vocab_entropy(const VocabSums& sums) {
  std::vector<float> entropy(sums.exponentials.size());
  for (std::size_t i = 0; i < entropy.size(); ++i) {
    const double z = sums.exponentials[i];
    entropy[i] = static_cast<float>(std::log(z) - sums.weighted[i] / z);
  }
  return entropy;
}

std::vector<float> vocab_log_probabilities(const VocabSums& sums) {
  std::vector<float> result(sums.exponentials.size());
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<float>(sums.targets[i] - std::log(sums.exponentials[i]));
  return result;
}

std::vector<float> vocab_entropy_gradient(const LogitsShard& logits, std::span<const float> max,
                                          const VocabSums& sums, std::span<const float> upstream) {
  std::vector<float> gradient(static_cast<std::size_t>(logits.rows * logits.columns));
  auto* out = gradient.data();
  for_each_row(logits, [&](std::size_t i, std::span<const float> row) {
    const double m = max[i];
    const double z = sums.exponentials[i];
    const double mean = sums.weighted[i] / z;
    for (const float x : row) {
      const double e = std::exp(x - m);
      *out++ = e != 0 ? static_cast<float>(-e / z * (x - m - mean) * upstream[i]) : 0.0F;
    }
  });
  return gradient;
}

std::vector<float> vocab_log_probability_gradient(const LogitsShard& logits, std::span<const float> max,
                                                  const VocabSums& sums,
                                                  std::span<const std::int64_t> targets,
                                                  std::span<const float> upstream) {
  std::vector<float> gradient(static_cast<std::size_t>(logits.rows * logits.columns));
  auto* out = gradient.data();
  for_each_row(logits, [&](std::size_t i, std::span<const float> row) {
    const double m = max[i];
    const double z = sums.exponentials[i];
    const auto own = own_column(logits, targets[i]);
    for (std::size_t k = 0; k < row.size(); ++k) {
      const double hit = static_cast<std::int64_t>(k) == own ? 1 : 0;
      *out++ = static_cast<float>((hit - std::exp(row[k] - m) / z) * upstream[i]);
    }
  });
  return gradient;
}

MaskedSum masked_sum(std::span<const float> x, std::span<const float> mask) {
  CHECK(x.size() == mask.size(), "every element has a mask");
  MaskedSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (mask[i] == 0) continue;
    sum.weight += mask[i];
    sum.total += static_cast<double>(x[i]) * mask[i];
  }
  return sum;
}

Result<double> masked_mean(const MaskedSum& sum) {
  if (sum.weight == 0) return fail(Errc::numeric, "no element is left by the mask, so there is no mean");
  return sum.total / sum.weight;
}

MaskedSum masked_squares(std::span<const float> x, std::span<const float> mask, double mean) {
  CHECK(x.size() == mask.size(), "every element has a mask");
  MaskedSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (mask[i] == 0) continue;
    const double away = x[i] - mean;
    sum.weight += mask[i];
    sum.total += away * away * mask[i];
  }
  return sum;
}

Result<double> masked_variance(const MaskedSum& squares, bool unbiased) {
  if (squares.weight == 0)
    return fail(Errc::numeric, "no element is left by the mask, so there is no variance");
  if (!unbiased) return squares.total / squares.weight;
  if (squares.weight <= 1)
    return fail(Errc::numeric, "the mask leaves {} elements; an unbiased variance needs more than one",
                squares.weight);
  return squares.total / (squares.weight - 1);
}

}  // namespace troupe::core
