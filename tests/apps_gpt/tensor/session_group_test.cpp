#include "apps/gpt/rank/session_group.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "actors/session/session.hpp"
#include "actors/simulation/simulation.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

/// `play` by every rank of a job with tensor-parallel groups of `size`, until all have left.
void play_ranks(int ranks, int size, core::Numerics numerics,
                const std::function<Result<void>(core::Rank rank, SessionTensorGroup& group)>& play) {
  actors::SimulationOptions simulation;
  simulation.ranks = {ranks};
  const auto report = actors::Simulation(simulation).run([&](actors::SimulatedRank& rank) -> Result<void> {
    actors::SessionOptions options;
    options.training.tensor_parallel = size;
    options.training.numerics = numerics;
    const auto session = TRY(actors::Session::join(rank, options, {{"weight", {4}}}));
    SessionTensorGroup group(static_cast<std::size_t>(size),
                             static_cast<std::size_t>(rank.rank().value % size), numerics);
    group.open(*TRY(session->group("tp")));
    TRY(play(rank.rank(), group));
    return session->leave();
  });
  for (const auto& violation : report.violations) ADD_FAILURE() << violation;
  for (const auto& result : report.results) EXPECT_TRUE(result) << result.error().message;
}

/// Each rank adds a power of two of its own, so that a sum says exactly which ranks were counted, and that
/// each was counted once.
TEST(SessionTensorGroup, SumsCountEachTensorParallelRankOnce) {
  for (const auto numerics : {core::Numerics::ordered, core::Numerics::fast}) {
    for (const auto& [ranks, size] : {std::pair{2, 2}, {4, 2}, {4, 4}, {8, 2}, {8, 4}}) {
      play_ranks(ranks, size, numerics, [&](core::Rank rank, SessionTensorGroup& group) -> Result<void> {
        const auto n = static_cast<std::size_t>(size);
        const int first = rank.value / size * size;
        const auto expected = static_cast<float>(((1 << size) - 1) << first);
        const auto own = static_cast<float>(1 << rank.value);

        for (const std::size_t elements : {std::size_t{1}, n, 7 * n + 1}) {
          std::vector<float> values(elements, own);
          TRY(group.sum(values));
          EXPECT_EQ(values, std::vector<float>(elements, expected))
              << "rank " << rank.value << " of " << ranks;
        }
        // Uneven parts, and one of no elements.
        std::vector<std::size_t> counts(n);
        std::size_t total = 0;
        for (std::size_t i = 0; i < n; ++i) total += counts[i] = 3 * i;
        std::vector<float> all(total, own), part(counts[group.index()], -1);
        TRY(group.scatter_sum(all, part, counts));
        EXPECT_EQ(part, std::vector<float>(part.size(), expected))
            << "rank " << rank.value << " of " << ranks;

        part.assign(part.size(), own);
        TRY(group.gather(part, all, counts));
        std::vector<float> gathered;
        for (std::size_t i = 0; i < n; ++i)
          gathered.insert(gathered.end(), counts[i], static_cast<float>(1 << (first + static_cast<int>(i))));
        EXPECT_EQ(all, gathered);

        std::vector<float> greatest = {own, -own};
        TRY(group.max(greatest));
        EXPECT_EQ(greatest, (std::vector<float>{static_cast<float>(1 << (first + size - 1)),
                                                -static_cast<float>(1 << first)}));
        return {};
      });
    }
  }
}

/// 1 + 2^-24 + 2^-24 is 1 from the left and the next float from the right.
TEST(SessionTensorGroup, OrderedSumsAddInTheOrderOfMembers) {
  constexpr float kHalf = 0x1p-24F;
  play_ranks(3, 3, core::Numerics::ordered, [&](core::Rank rank, SessionTensorGroup& group) -> Result<void> {
    const float forth[] = {1, kHalf, kHalf}, back[] = {kHalf, kHalf, 1};
    for (std::size_t elements = 1; elements <= 4; ++elements) {
      std::vector<float> values(elements, forth[rank.value]);
      TRY(group.sum(values));
      EXPECT_EQ(values, std::vector<float>(elements, 1.0F));
      values.assign(elements, back[rank.value]);
      TRY(group.sum(values));
      EXPECT_EQ(values, std::vector<float>(elements, 1.0F + 2 * kHalf));
    }
    return {};
  });
}

}  // namespace
}  // namespace troupe::apps::gpt
