#include "core/models/vocab_parallel.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

namespace troupe::core {
namespace {

/// Logits of one job, cut over ranks, and what fp64 arithmetic on all of them gives.
class VocabParallel {
 public:
  VocabParallel(std::int64_t rows, std::int64_t columns, int ranks, double scale, DType dtype = DType::f32)
      : rows_(rows), columns_(columns), ranks_(ranks), dtype_(dtype) {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      // Sums of uniform numbers are near enough to normal ones.
      double sum = 0;
      for (int k = 0; k < 4; ++k) sum += uniform() - 0.5;
      const auto value = static_cast<float>(sum * 1.7 * scale);
      logits_.push_back(dtype == DType::bf16 ? bf16_to_float(float_to_bf16(value)) : value);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      targets_.push_back(static_cast<std::int64_t>(uniform() * static_cast<double>(columns)));
      upstream_.push_back(static_cast<float>(uniform() * 2 - 1));
    }
    cut();
    reduce();
  }

  float& logit(std::int64_t row, std::int64_t column) {
    return logits_[static_cast<std::size_t>(row * columns_ + column)];
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  const VocabSums& sums() const { return sums_; }

  struct Reference {
    std::vector<double> entropy, log_probability, entropy_gradient, log_probability_gradient;
  };
  Reference reference() const {
    Reference result;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const auto* x = logits_.data() + row * columns_;
      const double m = *std::max_element(x, x + columns_);
      long double z = 0;
      long double t = 0;
      for (std::int64_t i = 0; i < columns_; ++i) {
        z += std::exp(x[i] - m);
        t += std::exp(x[i] - m) * (x[i] - m);
      }
      const auto r = static_cast<std::size_t>(row);
      const double entropy = static_cast<double>(std::log(z) - t / z);
      const double log_z = static_cast<double>(std::log(z));
      result.entropy.push_back(entropy);
      result.log_probability.push_back(x[targets_[r]] - m - log_z);
      for (std::int64_t i = 0; i < columns_; ++i) {
        const double log_p = x[i] - m - log_z;
        const double p = std::exp(log_p);
        result.entropy_gradient.push_back(-p * (log_p + entropy) * upstream_[r]);
        result.log_probability_gradient.push_back(((i == targets_[r] ? 1 : 0) - p) * upstream_[r]);
      }
    }
    return result;
  }

  std::vector<double> gradient(bool of_entropy) const {
    std::vector<double> whole(logits_.size());
    for (const auto& shard : views_) {
      const auto local = of_entropy ? vocab_entropy_gradient(shard, max_, sums_, upstream_)
                                    : vocab_log_probability_gradient(shard, max_, sums_, targets_, upstream_);
      for (std::int64_t row = 0; row < rows_; ++row) {
        for (std::int64_t i = 0; i < shard.columns; ++i)
          whole[static_cast<std::size_t>(row * columns_ + shard.first_column + i)] =
              local[static_cast<std::size_t>(row * shard.columns + i)];
      }
    }
    return whole;
  }

 private:
  double uniform() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }

  void cut() {
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto first = columns_ * rank / ranks_;
      const auto count = columns_ * (rank + 1) / ranks_ - first;
      std::vector<std::byte> bytes;
      for (std::int64_t row = 0; row < rows_; ++row) {
        for (std::int64_t i = 0; i < count; ++i) {
          const float value = logit(row, first + i);
          std::byte element[4];
          std::memcpy(element, &value, 4);
          // The upper half of a bf16 number in fp32 is its bits.
          bytes.insert(bytes.end(), element + (dtype_ == DType::bf16 ? 2 : 0), element + 4);
        }
      }
      memory_.push_back(std::move(bytes));
      views_.push_back({dtype_, memory_.back(), rows_, count, first});
      EXPECT_TRUE(views_.back().check().has_value());
    }
  }

  /// What the collectives between the ranks do.
  void reduce() {
    const auto rows = static_cast<std::size_t>(rows_);
    max_.assign(rows, -std::numeric_limits<float>::infinity());
    sums_ = {std::vector<double>(rows), std::vector<double>(rows), std::vector<double>(rows)};
    for (const auto& shard : views_) {
      const auto local = vocab_max(shard);
      for (std::size_t i = 0; i < rows; ++i) max_[i] = std::max(max_[i], local[i]);
    }
    for (const auto& shard : views_) {
      const auto local = vocab_sums(shard, max_, targets_);
      for (std::size_t i = 0; i < rows; ++i) {
        sums_.exponentials[i] += local.exponentials[i];
        sums_.weighted[i] += local.weighted[i];
        sums_.targets[i] += local.targets[i];
      }
    }
  }

  std::int64_t rows_, columns_;
  int ranks_;
  DType dtype_;
  std::uint64_t state_ = 7;
  std::vector<float> logits_;
  std::vector<std::int64_t> targets_;
  std::vector<float> upstream_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<LogitsShard> views_;
  std::vector<float> max_;
  VocabSums sums_;
};

void expect_close(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-5 + 1.3e-6 * std::abs(expected[i])) << i;
}

double relative_norm(const std::vector<double>& found, const std::vector<double>& expected) {
  double away = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    away += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(away / norm);
}

class Ranks : public testing::TestWithParam<int> {};

// Covers ranks-6, ranks-7.
TEST_P(Ranks, GiveTheEntropyOfTheWholeVocabulary) {
  const VocabParallel job(16, 155136, GetParam(), 1);
  const auto reference = job.reference();

  expect_close(vocab_entropy(job.sums()), reference.entropy);
  EXPECT_LE(relative_norm(job.gradient(true), reference.entropy_gradient), 1e-6);
}

// Covers ranks-9.
TEST_P(Ranks, GiveLogProbabilitiesOfTheWholeVocabulary) {
  const VocabParallel job(16, 5003, GetParam(), 3);  // columns that do not divide
  const auto reference = job.reference();

  expect_close(vocab_log_probabilities(job.sums()), reference.log_probability);
  EXPECT_LE(relative_norm(job.gradient(false), reference.log_probability_gradient), 1e-6);
}

// Covers ranks-9.
TEST_P(Ranks, StayFiniteForExtremeLogits) {
  const VocabParallel job(16, 1001, GetParam(), 1e4);
  const auto reference = job.reference();

  const auto entropy = vocab_entropy(job.sums());
  for (std::size_t i = 0; i < entropy.size(); ++i) {
    EXPECT_TRUE(std::isfinite(entropy[i]));
    EXPECT_NEAR(entropy[i], reference.entropy[i], 1e-5);
  }
  EXPECT_LE(relative_norm(job.gradient(false), reference.log_probability_gradient), 1e-6);
}

// Covers ranks-9.
TEST_P(Ranks, TakeBf16) {
  const VocabParallel job(16, 1001, GetParam(), 2, DType::bf16);
  const auto reference = job.reference();

  expect_close(vocab_entropy(job.sums()), reference.entropy);
  EXPECT_LE(relative_norm(job.gradient(true), reference.entropy_gradient), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, Ranks, testing::Values(1, 2, 4));

/// One logit is moved by a small step both ways, in fp64.
// Covers ranks-7.
TEST(VocabEntropy, HasTheGradientThatDifferencesHave) {
  constexpr std::int64_t kColumns = 7;
  const std::vector<float> x{0.5F, -1.25F, 2.0F, 0.0F, 3.5F, -0.75F, 1.0F};
  const LogitsShard logits{DType::f32, std::as_bytes(std::span(x)), 1, kColumns, 0};
  const auto max = vocab_max(logits);
  const std::vector<std::int64_t> target{2};
  const auto sums = vocab_sums(logits, max, target);
  const std::vector<float> one{1};

  const auto gradient = vocab_entropy_gradient(logits, max, sums, one);

  const auto entropy = [&](std::size_t moved, double by) {
    double z = 0;
    double s = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double value = x[i] + (i == moved ? by : 0);
      z += std::exp(value);
      s += std::exp(value) * value;
    }
    return std::log(z) - s / z;
  };
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_NEAR(gradient[i], (entropy(i, 1e-5) - entropy(i, -1e-5)) / 2e-5, 1e-7);
}

TEST(VocabEntropy, IsTheVocabularysLogarithmWhenAllAreEqual) {
  const std::vector<float> x(64, 3.0F);
  const LogitsShard logits{DType::f32, std::as_bytes(std::span(x)), 1, 64, 0};

  const auto entropy = vocab_entropy(vocab_sums(logits, vocab_max(logits), {}));

  EXPECT_FLOAT_EQ(entropy[0], std::log(64.0F));
}

/// The result is as if the vocabulary did not have them.
TEST(VocabEntropy, LeavesMaskedTokensOut) {
  const std::vector<float> x{1, -std::numeric_limits<float>::infinity(), 0};
  const std::vector<float> without{1, 0};
  const std::vector<float> one{1};
  const LogitsShard logits{DType::f32, std::as_bytes(std::span(x)), 1, 3, 0};
  const LogitsShard fewer{DType::f32, std::as_bytes(std::span(without)), 1, 2, 0};
  const auto sums = vocab_sums(logits, vocab_max(logits), {});
  const auto expected = vocab_sums(fewer, vocab_max(fewer), {});

  EXPECT_EQ(vocab_entropy(sums), vocab_entropy(expected));
  const auto gradient = vocab_entropy_gradient(logits, vocab_max(logits), sums, one);
  const auto wanted = vocab_entropy_gradient(fewer, vocab_max(fewer), expected, one);
  EXPECT_EQ(gradient, (std::vector<float>{wanted[0], 0, wanted[1]}));
}

TEST(LogitsShard, IsRefusedWithOtherBytesThanItsShapeNeeds) {
  const std::vector<std::byte> bytes(12);

  EXPECT_FALSE((LogitsShard{DType::f32, bytes, 2, 2, 0}.check().has_value()));
  EXPECT_FALSE((LogitsShard{DType::f32, bytes, -1, 3, 0}.check().has_value()));
  EXPECT_FALSE((LogitsShard{DType::i32, bytes, 1, 3, 0}.check().has_value()));
  EXPECT_TRUE((LogitsShard{DType::f32, bytes, 1, 3, 0}.check().has_value()));
}

TEST(Masked, GivesMeanAndVarianceOfAllRanks) {
  const std::vector<float> first{1, 100, 3}, second{std::numeric_limits<float>::quiet_NaN(), 5, 7};
  const std::vector<float> first_mask{1, 0, 1}, second_mask{0, 1, 1};

  auto sum = masked_sum(first, first_mask);
  sum += masked_sum(second, second_mask);
  const double mean = masked_mean(sum).value();
  auto squares = masked_squares(first, first_mask, mean);
  squares += masked_squares(second, second_mask, mean);

  EXPECT_EQ(mean, 4);  // of 1, 3, 5, 7
  EXPECT_EQ(masked_variance(squares, false).value(), 5);
  EXPECT_EQ(masked_variance(squares, true).value(), 20.0 / 3);
}

TEST(Masked, HasNoMeanOfNothingNorVarianceOfOne) {
  const std::vector<float> x{2, 3}, nothing{0, 0}, one{0, 1};

  EXPECT_EQ(masked_mean(masked_sum(x, nothing)).error().code, Errc::numeric);
  EXPECT_EQ(masked_variance(masked_squares(x, nothing, 0), false).error().code, Errc::numeric);
  EXPECT_EQ(masked_variance(masked_squares(x, one, 3), true).error().code, Errc::numeric);
  EXPECT_EQ(masked_variance(masked_squares(x, one, 3), false).value(), 0);
}

}  // namespace
}  // namespace troupe::core
