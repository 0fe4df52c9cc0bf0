#include "actors/planes/step/verdict.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

constexpr std::size_t kLimbs = core::ExactSquareSum::kLimbs;
constexpr std::size_t kNonfinite = kLimbs;
constexpr std::size_t kLosses = kLimbs + 1;

}  // namespace

std::size_t verdict_words(int lanes, core::WorldSize world) {
  return kLosses + static_cast<std::size_t>(lanes) + static_cast<std::size_t>(world.value);
}

gpu::BufferView squares_of_verdict(gpu::BufferView words) {
  static_assert(sizeof(core::ExactSquareSum) == kLosses * sizeof(std::int64_t));
  return words.subview(0, sizeof(core::ExactSquareSum));
}

void write_verdict(std::span<const messages::LaneLoss> losses, bool refuse, std::uint32_t wishes,
                   core::Rank rank, int lanes, std::span<std::int64_t> words) {
  std::fill(words.begin(), words.end(), 0);
  for (const auto& loss : losses) {
    CHECK(loss.lane.value >= 0 && loss.lane.value < lanes, "a loss belongs to a lane of the job");
    words[kLosses + static_cast<std::size_t>(loss.lane.value)] = std::bit_cast<std::int64_t>(loss.loss);
  }
  words[kLosses + static_cast<std::size_t>(lanes + rank.value)] =
      std::int64_t{wishes} << 1 | (refuse ? 1 : 0);
}

messages::Verdict read_verdict(std::span<const std::int64_t> words, int lanes, core::WorldSize world) {
  core::ExactSquareSum squares;
  std::copy_n(words.begin(), kLimbs, squares.limbs.begin());
  messages::Verdict verdict;
  verdict.gradient_norm = std::sqrt(squares.to_double());
  verdict.nonfinite_gradients = words[kNonfinite];
  for (int lane = 0; lane < lanes; ++lane) {
    verdict.losses.push_back(std::bit_cast<double>(words[kLosses + static_cast<std::size_t>(lane)]));
  }
  for (int rank = 0; rank < world.value; ++rank) {
    const auto word = words[kLosses + static_cast<std::size_t>(lanes + rank)];
    if ((word & 1) != 0) verdict.refusing_ranks.push_back(rank);
    verdict.wishes |= static_cast<std::uint32_t>(word >> 1);
  }
  return verdict;
}

}  // namespace troupe::actors
