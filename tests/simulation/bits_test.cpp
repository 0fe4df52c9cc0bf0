#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <tuple>

#include "tests/simulation/simulated_job.hpp"

namespace troupe::actors {
namespace {

TEST(OrderedNumerics, GiveTheSameBitsOnAnyRanksAndStrategy) {
  for (int microbatches : {1, 4}) {
    std::optional<TinyTrainerResult> reference;
    for (int ranks : {1, 2, 3, 4, 8}) {
      for (const auto strategy : strategies_for(ranks)) {
        if (microbatches > 1 && has_units(strategy)) continue;
        for (bool overlap : {false, true}) {
          auto options = tiny_job(strategy, overlap, microbatches);
          options.steps = 10;
          auto outcome = simulate_tiny(ranks, 7, options);
          ASSERT_EQ(problems_of(outcome.report), "") << ranks << " ranks";
          for (const auto& rank : outcome.ranks) {
            if (!reference) reference = rank;
            ASSERT_EQ(rank.state_hash, reference->state_hash)
                << ranks << " ranks, " << core::name_of(strategy) << ", overlap " << overlap;
            ASSERT_EQ(rank.outcomes.size(), 10u);
            for (std::size_t step = 0; step < 10; ++step) {
              ASSERT_EQ(rank.outcomes[step].loss, reference->outcomes[step].loss);
              ASSERT_EQ(rank.outcomes[step].gradient_norm, reference->outcomes[step].gradient_norm);
            }
          }
        }
      }
    }
  }
}

TEST(OrderedNumerics, GiveTheSameBitsForUnevenLanes) {
  for (int lanes : {5, 6, 7}) {
    std::optional<std::uint64_t> reference;
    for (int ranks : {1, 2, 3}) {
      for (const auto strategy : strategies_for(ranks)) {
        auto options = tiny_job(strategy);
        options.session.training.lanes = lanes;
        auto outcome = simulate_tiny(ranks, 3, options);
        ASSERT_EQ(problems_of(outcome.report), "") << ranks << " ranks";
        for (const auto& rank : outcome.ranks) {
          if (!reference) reference = rank.state_hash;
          ASSERT_EQ(rank.state_hash, *reference) << lanes << " lanes on " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(OrderedNumerics, GiveTheSameBitsForPiecesOfLanesAnywhere) {
  const auto whole = simulate_tiny(1, 3, tiny_job(core::Strategy::ddp));
  std::map<int, std::uint64_t> references;
  for (const auto& [pieces, context, experts] :
       {std::tuple{2, 2, 1}, {2, 1, 1}, {2, 1, 2}, {3, 3, 1}, {3, 1, 1}, {4, 4, 1}, {4, 2, 2}, {4, 1, 2}}) {
    for (int places : {1, 2, 3}) {
      if (places * context % experts != 0) continue;
      for (auto strategy : {core::Strategy::ddp, core::Strategy::zero1, core::Strategy::zero3}) {
        auto options = tiny_job(strategy);
        options.session.training.context_parallel = context;
        options.session.training.context_pieces = pieces;
        options.session.training.expert_parallel = experts;
        auto outcome = simulate_tiny(places * context, 3, options);
        ASSERT_EQ(problems_of(outcome.report), "") << places << " places";
        for (const auto& rank : outcome.ranks) {
          const auto reference = references.emplace(pieces, rank.state_hash).first->second;
          ASSERT_EQ(rank.state_hash, reference)
              << pieces << " pieces on " << places << "x" << context << " ranks, " << experts << " to a bias";
        }
      }
    }
    EXPECT_NE(references.at(pieces), whole.ranks[0].state_hash) << "each piece has data of its own";
  }
}

TEST(OrderedNumerics, GiveTheSameBitsWithSeveralOptimizerCopies) {
  auto options = tiny_job(core::Strategy::zero1);
  auto one = simulate_tiny(4, 3, options);
  options.session.training.optimizer_instances = 2;
  auto two = simulate_tiny(4, 3, options);

  ASSERT_EQ(problems_of(one.report) + problems_of(two.report), "");
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(two.ranks[rank].state_hash, one.ranks[0].state_hash);
    EXPECT_EQ(two.ranks[rank].outcomes.back().gradient_norm, one.ranks[0].outcomes.back().gradient_norm);
  }
}

}  // namespace
}  // namespace troupe::actors
