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
/// How a number that must be the same on all ranks is divided over words.
constexpr std::size_t kParts = 4;
constexpr int kPartBits = 16;

/// Tells by sums over ranks, up to 2^31 of them, whether all have the same number: all have the mean exactly
/// if its square is the mean of the squares.
struct Same {
  std::array<std::int64_t, kParts> sums{};
  std::array<std::int64_t, kParts> squares{};

  explicit Same(std::uint64_t number) {
    for (std::size_t part = 0; part < kParts; ++part) {
      sums[part] = static_cast<std::int64_t>(number >> (part * kPartBits) & ((1U << kPartBits) - 1));
      squares[part] = sums[part] * sums[part];
    }
  }
  Same() = default;

  bool on_all(std::int64_t ranks) const {
    for (std::size_t part = 0; part < kParts; ++part) {
      const auto mean = sums[part] / ranks;
      if (mean * ranks != sums[part] || mean * mean * ranks != squares[part]) return false;
    }
    return true;
  }
};

struct Words {
  core::ExactSquareSum squares;
  core::ExactSum losses;
  std::int64_t refusing = 0;
  std::int64_t ranks = 1;
  Same alike;
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
                   std::uint64_t alike, std::span<std::int64_t> words) {
  Words verdict;
  for (const auto& [lane, loss, weight] : losses) {
    verdict.losses.accumulate(loss);
    verdict.lanes += 1;
    if (!weight) continue;
    verdict.weights.accumulate(*weight);
    verdict.weighted_lanes += 1;
  }
  verdict.refusing = refuse ? 1 : 0;
  verdict.alike = Same(alike);
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
  verdict.differs = !sum.alike.on_all(sum.ranks);
  for (std::size_t wish = 0; wish < kWishes; ++wish) {
    const auto count = static_cast<std::uint64_t>(sum.wishes[wish / 2]) >> (wish % 2 == 0 ? 0 : kCountBits);
    if (static_cast<std::uint32_t>(count) != 0) verdict.wishes |= std::uint32_t{1} << wish;
  }
  return verdict;
}

}  // namespace troupe::actors
