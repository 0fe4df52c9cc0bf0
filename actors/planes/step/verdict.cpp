#include "actors/planes/step/verdict.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// Two counts of wishes per word, for up to 2^31 ranks.
constexpr std::size_t kWishes = 32;
constexpr int kCountBits = 32;

struct Words {
  core::ExactSquareSum squares;
  core::ExactSum losses;
  std::int64_t refusing = 0;
  std::int64_t refusing_ranks = 0;  ///< the sum of their numbers
  std::array<std::int64_t, kWishes / 2> wishes{};
  core::ExactSum weights;
  std::int64_t lanes = 0;
  std::int64_t weighted_lanes = 0;
};
constexpr std::size_t kWords = sizeof(Words) / sizeof(std::int64_t);
static_assert(std::is_trivially_copyable_v<Words> && offsetof(Words, squares) == 0);

/// What follows from the sums of losses and weights over all lanes.
void average(const Words& sum, const Averaging& averaging, messages::Verdict& verdict) {
  const double losses = sum.losses.to_double();
  if (sum.weighted_lanes == 0) {
    verdict.weight = averaging.lanes;
    verdict.loss = losses / averaging.lanes;
    return;
  }
  verdict.unweighted_lanes = sum.lanes - sum.weighted_lanes;
  verdict.weight = sum.weights.to_double();
  if (verdict.weight == 0) return;
  verdict.loss = losses / (verdict.weight / averaging.loss_divisor);
  const double all = static_cast<double>(averaging.lanes) * averaging.microbatches * averaging.loss_divisor;
  if (averaging.average) verdict.gradient_factor = all / verdict.weight;
}

}  // namespace

std::size_t verdict_words() {
  return kWords;
}

gpu::BufferView squares_of_verdict(gpu::BufferView words) {
  return words.subview(0, sizeof(core::ExactSquareSum));
}

void write_verdict(std::span<const messages::LaneLoss> losses, bool refuse, std::uint32_t wishes,
                   core::Rank rank, std::span<std::int64_t> words) {
  Words verdict;
  for (const auto& [lane, loss, weight] : losses) {
    verdict.losses.accumulate(loss);
    verdict.lanes += 1;
    if (!weight) continue;
    verdict.weights.accumulate(*weight);
    verdict.weighted_lanes += 1;
  }
  if (refuse) {
    verdict.refusing = 1;
    verdict.refusing_ranks = rank.value;
  }
  for (std::size_t wish = 0; wish < kWishes; ++wish) {
    const std::int64_t wanted = wishes >> wish & 1;
    verdict.wishes[wish / 2] += wanted << (wish % 2 == 0 ? 0 : kCountBits);
  }
  CHECK(words.size() == kWords, "a verdict has the same words in any job");
  const auto plain = std::bit_cast<std::array<std::int64_t, kWords>>(verdict);
  std::copy(plain.begin(), plain.end(), words.begin());
}

messages::Verdict read_verdict(std::span<const std::int64_t> words, const Averaging& averaging) {
  CHECK(words.size() == kWords, "a verdict has the same words in any job");
  std::array<std::int64_t, kWords> plain{};
  std::copy(words.begin(), words.end(), plain.begin());
  const auto sum = std::bit_cast<Words>(plain);
  messages::Verdict verdict;
  verdict.gradient_norm = std::sqrt(sum.squares.to_double());
  verdict.nonfinite_gradients = sum.squares.nonfinite;
  average(sum, averaging, verdict);
  verdict.refusing = sum.refusing;
  if (sum.refusing == 1) verdict.refusing_rank = core::Rank{static_cast<std::int32_t>(sum.refusing_ranks)};
  for (std::size_t wish = 0; wish < kWishes; ++wish) {
    const auto count = static_cast<std::uint64_t>(sum.wishes[wish / 2]) >> (wish % 2 == 0 ? 0 : kCountBits);
    if (static_cast<std::uint32_t>(count) != 0) verdict.wishes |= std::uint32_t{1} << wish;
  }
  return verdict;
}

}  // namespace troupe::actors
