#include "core/experts/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr std::size_t kMostExperts = std::size_t{1} << 16;
/// What Megatron-Core adds to sums used as divisors.
constexpr double kEpsilon = 1e-20;

/// The indices of the `count` greatest values, greatest first, lower indices first among equals.
template <class T>
void choose(std::span<const T> values, std::span<std::int32_t> chosen, std::vector<char>& taken) {
  taken.assign(values.size(), 0);
  for (std::int32_t& place : chosen) {
    place = -1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (taken[i] != 0) continue;
      if (place < 0 || values[i] > values[static_cast<std::size_t>(place)])
        place = static_cast<std::int32_t>(i);
    }
    taken[static_cast<std::size_t>(place)] = 1;
  }
}

std::size_t at(std::int32_t expert) {
  return static_cast<std::size_t>(expert);
}

/// Exponentials of the differences from the greatest value, and their sum in this order.
template <class T>
T exponentials(std::span<T> values) {
  const T greatest = *std::max_element(values.begin(), values.end());
  T sum = 0;
  for (T& value : values) {
    value = std::exp(value - greatest);
    sum += value;
  }
  return sum;
}

template <class T>
void softmax(std::span<T> values) {
  const T sum = exponentials(values);
  for (T& value : values) value /= sum;
}

/// One token's route through the router, with scratch memory.
template <class T>
class TokenRouter {
 public:
  explicit TokenRouter(const RouterOptions& options)
      : options_(options), scores_(options.experts), judged_(options.experts), chosen_(options.choices) {}

  void choose_experts(std::span<const T> logits, std::span<const T> bias, std::span<std::int32_t> experts) {
    score(logits);
    for (std::size_t i = 0; i < judged_.size(); ++i)
      judged_[i] = scores_[i] + (bias.empty() ? T{0} : bias[i]);
    if (options_.chosen_groups < options_.groups) keep_best_groups();
    choose<T>(judged_, experts, taken_);
  }

  /// The scores of the chosen experts before normalisation, after choose_experts() or score().
  std::span<T> chosen_scores(std::span<const std::int32_t> experts) {
    for (std::size_t k = 0; k < chosen_.size(); ++k) chosen_[k] = scores_[at(experts[k])];
    if (scores_follow_choice()) softmax<T>(chosen_);
    return chosen_;
  }

  /// The logits themselves where the softmax is over the chosen experts.
  void score(std::span<const T> logits) {
    if (scores_follow_choice()) {
      std::copy(logits.begin(), logits.end(), scores_.begin());
    } else {
      expert_scores<T>(options_.score, logits, scores_);
    }
  }

  std::span<const T> scores() const { return scores_; }
  bool scores_follow_choice() const {
    return options_.score == ScoreFunction::softmax && !options_.score_before_choice;
  }

 private:
  void keep_best_groups() {
    const std::size_t size = options_.experts / options_.groups;
    const std::size_t counted = options_.choices / options_.chosen_groups;
    group_scores_.assign(options_.groups, T{0});
    best_.resize(counted);
    for (std::size_t group = 0; group < options_.groups; ++group) {
      const std::span<const T> members = std::span<const T>(judged_).subspan(group * size, size);
      choose<T>(members, best_, taken_);
      for (const std::int32_t place : best_) group_scores_[group] += members[at(place)];
    }
    best_.resize(options_.chosen_groups);
    choose<T>(group_scores_, best_, taken_);
    for (std::size_t group = 0; group < options_.groups; ++group) {
      if (taken_[group] != 0) continue;
      std::fill_n(judged_.begin() + static_cast<std::ptrdiff_t>(group * size), size,
                  -std::numeric_limits<T>::infinity());
    }
  }

  const RouterOptions& options_;
  std::vector<T> scores_, judged_, chosen_, group_scores_;
  std::vector<std::int32_t> best_;
  std::vector<char> taken_;
};

template <class T>
T sum_of(std::span<const T> values) {
  T sum = 0;
  for (const T value : values) sum += value;
  return sum;
}

/// Converts the gradient of the weights to that of the chosen scores, in place.
template <class T>
void weights_backward(const RouterOptions& options, std::span<const T> chosen, std::span<T> d) {
  const T scale = static_cast<T>(options.scale);
  for (T& value : d) value *= scale;
  if (!options.normalise) return;
  const T sum = sum_of(chosen) + static_cast<T>(kEpsilon);
  T mean = 0;
  for (std::size_t k = 0; k < d.size(); ++k) mean += d[k] * chosen[k] / sum;
  for (T& value : d) value = (value - mean) / sum;
}

}  // namespace

RouterOptions RouterOptions::with_biases() const {
  auto options = *this;
  options.score = ScoreFunction::sigmoid;
  options.normalise = true;
  return options;
}

Result<void> validate(const RouterOptions& options) {
  const auto& o = options;
  if (o.experts < 1 || o.experts > kMostExperts)
    return fail(Errc::invalid_argument, "experts must lie in 1..{}, found {}", kMostExperts, o.experts);
  if (o.choices < 1 || o.choices > o.experts)
    return fail(Errc::invalid_argument, "a token must choose 1..{} experts, found {}", o.experts, o.choices);
  if (!std::isfinite(o.scale) || o.scale <= 0)
    return fail(Errc::invalid_argument, "the scale of expert weights must be above 0, found {}", o.scale);
  if (o.groups < 1 || o.experts % o.groups != 0)
    return fail(Errc::invalid_argument, "groups must divide the {} experts, found {}", o.experts, o.groups);
  if (o.chosen_groups < 1 || o.chosen_groups > o.groups)
    return fail(Errc::invalid_argument, "a token must choose from 1..{} groups, found {}", o.groups,
                o.chosen_groups);
  if (o.chosen_groups == o.groups) return {};
  const std::size_t size = o.experts / o.groups;
  if (o.choices % o.chosen_groups != 0 || o.choices > o.chosen_groups * size ||
      o.choices / o.chosen_groups > size)
    return fail(Errc::invalid_argument,
                "{} choices from {} groups of {} experts are not possible: choices must be a multiple of the "
                "chosen groups, and no more than these have experts",
                o.choices, o.chosen_groups, size);
  return {};
}

template <class T>
void expert_scores(ScoreFunction score, std::span<const T> logits, std::span<T> scores) {
  std::copy(logits.begin(), logits.end(), scores.begin());
  if (score == ScoreFunction::softmax) return softmax<T>(scores);
  for (T& value : scores) value = T{1} / (T{1} + std::exp(-value));
}

template <class T>
void route(const RouterOptions& options, std::span<const T> logits, std::span<const T> bias,
           const Choices<T>& choices) {
  const std::size_t E = options.experts, K = options.choices, N = logits.size() / E;
  CHECK(choices.experts.size() == N * K && choices.weights.size() == N * K, "K places for each token");
  CHECK(bias.empty() || (bias.size() == E && options.score == ScoreFunction::sigmoid),
        "a bias is one per expert, beside sigmoids");
  TokenRouter<T> router(options);
  for (std::size_t token = 0; token < N; ++token) {
    const auto experts = choices.experts.subspan(token * K, K);
    router.choose_experts(logits.subspan(token * E, E), bias, experts);
    const std::span<const T> chosen = router.chosen_scores(experts);
    const T sum = options.normalise ? sum_of(chosen) + static_cast<T>(kEpsilon) : T{1};
    for (std::size_t k = 0; k < K; ++k)
      choices.weights[token * K + k] = chosen[k] / sum * static_cast<T>(options.scale);
  }
}

template <class T>
void route_backward(const RouterOptions& options, std::span<const T> logits,
                    std::span<const std::int32_t> experts, std::span<const T> d_weights,
                    std::span<T> d_logits) {
  const std::size_t E = options.experts, K = options.choices, N = logits.size() / E;
  CHECK(experts.size() == N * K && d_weights.size() == N * K && d_logits.size() == N * E,
        "gradients have the shapes of forward");
  TokenRouter<T> router(options);
  std::vector<T> d(K);
  for (std::size_t token = 0; token < N; ++token) {
    const auto mine = experts.subspan(token * K, K);
    const auto d_mine = d_logits.subspan(token * E, E);
    router.score(logits.subspan(token * E, E));
    const std::span<const T> chosen = router.chosen_scores(mine);
    std::copy_n(d_weights.begin() + static_cast<std::ptrdiff_t>(token * K), K, d.begin());
    weights_backward<T>(options, chosen, d);
    if (options.score == ScoreFunction::sigmoid) {
      for (std::size_t k = 0; k < K; ++k) d_mine[at(mine[k])] += d[k] * chosen[k] * (T{1} - chosen[k]);
      continue;
    }
    T mean = 0;
    for (std::size_t k = 0; k < K; ++k) mean += d[k] * chosen[k];
    for (std::size_t k = 0; k < K; ++k) d_mine[at(mine[k])] += chosen[k] * d[k];
    if (router.scores_follow_choice()) {
      for (std::size_t k = 0; k < K; ++k) d_mine[at(mine[k])] -= chosen[k] * mean;
    } else {
      for (std::size_t e = 0; e < E; ++e) d_mine[e] -= router.scores()[e] * mean;
    }
  }
}

template void expert_scores<float>(ScoreFunction, std::span<const float>, std::span<float>);
template void expert_scores<double>(ScoreFunction, std::span<const double>, std::span<double>);
template void route<float>(const RouterOptions&, std::span<const float>, std::span<const float>,
                           const Choices<float>&);
template void route<double>(const RouterOptions&, std::span<const double>, std::span<const double>,
                            const Choices<double>&);
template void route_backward<float>(const RouterOptions&, std::span<const float>,
                                    std::span<const std::int32_t>, std::span<const float>, std::span<float>);
template void route_backward<double>(const RouterOptions&, std::span<const double>,
                                     std::span<const std::int32_t>, std::span<const double>,
                                     std::span<double>);

}  // namespace troupe::core
