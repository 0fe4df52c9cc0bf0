#include "core/experts/balance.hpp"

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

/// Megatron-Core's value.
constexpr double kLeastTotal = 1e-20;

/// Softmax, or sigmoids; returns the divisor that makes the sigmoids sum to one.
template <class T>
T balance_scores(const RouterOptions& options, std::span<const T> logits, std::span<T> scores) {
  expert_scores<T>(options.score, logits, scores);
  if (options.score == ScoreFunction::softmax) return T{1};
  T sum = static_cast<T>(kLeastTotal);
  for (const T score : scores) sum += score;
  return sum;
}

/// ln sum exp, added from expert 0 on.
template <class T>
double log_sum(std::span<const T> logits) {
  const double greatest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const T logit : logits) sum += std::exp(static_cast<double>(logit) - greatest);
  return greatest + std::log(sum);
}

}  // namespace

ExpertLoad& ExpertLoad::operator+=(const ExpertLoad& other) {
  if (counts.empty()) return *this = other;
  CHECK(counts.size() == other.counts.size(), "loads of as many experts");
  for (std::size_t e = 0; e < counts.size(); ++e) {
    counts[e] += other.counts[e];
    score_sums[e] += other.score_sums[e];
  }
  tokens += other.tokens;
  return *this;
}

template <class T>
ExpertLoad expert_load(const RouterOptions& options, std::span<const T> logits,
                       std::span<const std::int32_t> experts) {
  const std::size_t E = options.experts, N = logits.size() / E;
  ExpertLoad load{std::vector<std::int64_t>(E), std::vector<double>(E), static_cast<std::int64_t>(N)};
  for (const std::int32_t expert : experts) ++load.counts[static_cast<std::size_t>(expert)];
  std::vector<T> scores(E);
  for (std::size_t token = 0; token < N; ++token) {
    const T sum = balance_scores<T>(options, logits.subspan(token * E, E), scores);
    for (std::size_t e = 0; e < E; ++e) load.score_sums[e] += static_cast<double>(scores[e] / sum);
  }
  return load;
}

double balance_of_count(const RouterOptions& options, const ExpertLoad& load, double scale) {
  if (load.tokens == 0) return 0;
  const double tokens = static_cast<double>(load.tokens);
  return scale * static_cast<double>(options.experts) /
         (tokens * tokens * static_cast<double>(options.choices));
}

double balance_loss(const RouterOptions& options, const ExpertLoad& load) {
  if (load.tokens == 0) return 0;
  double sum = 0;
  for (std::size_t e = 0; e < options.experts; ++e)
    sum += static_cast<double>(load.counts[e]) * load.score_sums[e];
  const double tokens = static_cast<double>(load.tokens);
  return static_cast<double>(options.experts) * sum /
         (tokens * tokens * static_cast<double>(options.choices));
}

template <class T>
void balance_backward(const RouterOptions& options, std::span<const T> logits, const ExpertLoad& load,
                      double scale, std::span<T> d_logits) {
  if (load.tokens == 0) return;
  const std::size_t E = options.experts, N = logits.size() / E;
  const double all = balance_of_count(options, load, scale);
  std::vector<T> by_score(E), scores(E);
  for (std::size_t e = 0; e < E; ++e) by_score[e] = static_cast<T>(all * static_cast<double>(load.counts[e]));
  for (std::size_t token = 0; token < N; ++token) {
    const T sum = balance_scores<T>(options, logits.subspan(token * E, E), scores);
    T mean = 0;
    for (std::size_t e = 0; e < E; ++e) mean += by_score[e] * scores[e] / sum;
    for (std::size_t e = 0; e < E; ++e) {
      // Gradient of a softmax: p (d - mean); of a sigmoid s divided by their sum: s (1 - s) (d - mean) / sum.
      const T own =
          options.score == ScoreFunction::softmax ? scores[e] : scores[e] * (T{1} - scores[e]) / sum;
      d_logits[token * E + e] += own * (by_score[e] - mean);
    }
  }
}

template <class T>
double z_loss(std::size_t experts, std::span<const T> logits) {
  const std::size_t N = logits.size() / experts;
  double sum = 0;
  for (std::size_t token = 0; token < N; ++token) {
    const double z = log_sum(logits.subspan(token * experts, experts));
    sum += z * z;
  }
  return N == 0 ? 0 : sum / static_cast<double>(N);
}

template <class T>
void z_loss_backward(std::size_t experts, std::span<const T> logits, double scale, std::span<T> d_logits) {
  const std::size_t N = logits.size() / experts;
  for (std::size_t token = 0; token < N; ++token) {
    const auto mine = logits.subspan(token * experts, experts);
    const double z = log_sum(mine);
    const double d = scale * 2 * z / static_cast<double>(N);
    for (std::size_t e = 0; e < experts; ++e)
      d_logits[token * experts + e] += static_cast<T>(d * std::exp(static_cast<double>(mine[e]) - z));
  }
}

void update_expert_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate) {
  CHECK(bias.size() == counts.size(), "one count per expert");
  std::int64_t all = 0;
  for (const std::int64_t count : counts) all += count;
  const auto experts = static_cast<std::int64_t>(counts.size());
  for (std::size_t e = 0; e < bias.size(); ++e) {
    // Compared as integers, so that rounding cannot decide.
    const std::int64_t above = counts[e] * experts - all;
    if (above != 0) bias[e] += static_cast<float>(above < 0 ? rate : -rate);
  }
}

template ExpertLoad expert_load<float>(const RouterOptions&, std::span<const float>,
                                       std::span<const std::int32_t>);
template ExpertLoad expert_load<double>(const RouterOptions&, std::span<const double>,
                                        std::span<const std::int32_t>);
template void balance_backward<float>(const RouterOptions&, std::span<const float>, const ExpertLoad&, double,
                                      std::span<float>);
template void balance_backward<double>(const RouterOptions&, std::span<const double>, const ExpertLoad&,
                                       double, std::span<double>);
template double z_loss<float>(std::size_t, std::span<const float>);
template double z_loss<double>(std::size_t, std::span<const double>);
template void z_loss_backward<float>(std::size_t, std::span<const float>, double, std::span<float>);
template void z_loss_backward<double>(std::size_t, std::span<const double>, double, std::span<double>);

}  // namespace troupe::core
