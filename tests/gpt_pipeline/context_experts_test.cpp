#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "tests/gpt_pipeline/context_job.hpp"

// Experts in ranks that share each sequence: routers decide about the rows of all of them together.

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

const Trained& one_rank(bool tied, bool capacity, const Corpus& corpus) {
  static std::map<std::pair<bool, bool>, Trained> known;
  auto& found = known[{tied, capacity}];
  const Cut alone{.tied = tied, .strategy = Strategy::ddp, .experts = true, .capacity = capacity};
  if (found.losses.empty()) found = run_context(alone, corpus, 20)[0];
  return found;
}

const Trained& plainest_of(const Cut& cut, const Corpus& corpus) {
  static std::map<std::string, Trained> known;
  const Cut whole = without_stages(cut);
  auto& found = known[whole.name()];
  if (found.losses.empty()) found = run_context(whole, corpus, 20)[0];
  return found;
}

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::vector<Cut> cuts_of_both() {
  std::vector<Cut> all;
  const auto add = [&](Cut cut, int data_parallel = 1) {
    cut.experts = true;
    cut.sequence = cut.tensor > 1;
    cut.ranks = cut.stages * cut.tensor * cut.context * data_parallel;
    all.push_back(cut);
  };
  for (const bool capacity : {false, true}) {
    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
      add({.strategy = strategy, .capacity = capacity, .context = 2}, 2);
      add({.strategy = strategy, .tensor = 2, .capacity = capacity, .context = 2});
      add({.stages = 2, .strategy = strategy, .capacity = capacity, .context = 2});
    }
    add({.strategy = Strategy::zero1, .capacity = capacity, .context = 4});
    // Experts over some of the ranks that share a sequence, all, or those of two sequences.
    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 2, .context = 2});
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 4, .context = 2}, 2);
      add({.strategy = strategy, .tensor = 2, .capacity = capacity, .expert_parallel = 2, .context = 2});
      add({.stages = 2, .strategy = strategy, .capacity = capacity, .expert_parallel = 2, .context = 2});
      // Each rank has several pieces.
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 2, .pieces = 2}, 2);
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 2, .context = 2, .pieces = 4});
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 4, .context = 2, .pieces = 4}, 2);
      add({.strategy = strategy, .tensor = 2, .capacity = capacity, .expert_parallel = 2, .pieces = 4}, 2);
      add({.stages = 2, .strategy = strategy, .capacity = capacity, .expert_parallel = 2, .pieces = 4}, 2);
    }
    add({.strategy = Strategy::zero2, .capacity = capacity, .expert_parallel = 2, .context = 4});
    add({.strategy = Strategy::zero1, .capacity = capacity, .expert_parallel = 4, .context = 4}, 2);
    for (const auto& [schedule, chunks] : {std::pair{ScheduleKind::gpipe, 1},
                                           {ScheduleKind::interleaved, 2},
                                           {ScheduleKind::zero_bubble, 1}}) {
      add({.stages = 2,
           .schedule = schedule,
           .chunks = chunks,
           .tied = false,
           .strategy = Strategy::zero3,
           .capacity = capacity,
           .context = 2},
          2);
      add({.stages = 2,
           .schedule = schedule,
           .chunks = chunks,
           .strategy = Strategy::zero3,
           .capacity = capacity,
           .expert_parallel = 2,
           .context = 2,
           .pieces = 4});
      add({.stages = 2,
           .schedule = schedule,
           .chunks = chunks,
           .tied = false,
           .tensor = 2,
           .capacity = capacity,
           .context = 2});
    }
  }
  return all;
}

class ContextExperts : public testing::TestWithParam<Cut> {};

TEST_P(ContextExperts, HaveSharedSequencesBitsAndOneRanksLosses) {
  const TrainingText text;
  const Cut& cut = GetParam();

  const auto& plainest = plainest_of(cut, text.corpus());
  const auto& whole = one_rank(cut.tied, cut.capacity, text.corpus());
  const auto ranks = run_context(cut, text.corpus(), 20);

  ASSERT_EQ(whole.losses.size(), 20U);
  ASSERT_LT(whole.losses.back(), whole.losses.front());
  double furthest = 0;
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, plainest.losses);
    EXPECT_EQ(rank.norms, plainest.norms);
    EXPECT_EQ(rank.parameters, plainest.parameters);
    EXPECT_EQ(rank.load, plainest.load);
    for (std::size_t step = 0; step < whole.losses.size(); ++step) {
      furthest = std::max(furthest, std::abs(rank.losses[step] / whole.losses[step] - 1));
      ASSERT_NEAR(rank.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << "step " << step;
      ASSERT_NEAR(rank.norms[step], whole.norms[step], 1e-4 * whole.norms[step]) << "step " << step;
    }
  }
  RecordProperty("furthest", fmt::format("{:.2g}", furthest));
  // Two choices for every token in a lane, counted once, whoever has its row.
  const std::int64_t choices = 20 * 4 * 2 * 16 * 2;
  for (std::size_t layer = 1; layer < 4; ++layer) {
    EXPECT_EQ(sum_of(ranks[0].load.chosen(layer)), choices);
    EXPECT_EQ(sum_of(ranks[0].load.dropped(layer)) > 0, cut.capacity);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, ContextExperts, testing::ValuesIn(cuts_of_both()),
                         testing::PrintToStringParamName());

/// Before f32 sums, which are cut in other places, have come apart, all ranks decide as one.
TEST(ContextOfExperts, SendTheFirstStepsTokensWhereOneRankDoes) {
  const TrainingText text;
  for (const bool capacity : {false, true}) {
    Cut cut{.strategy = Strategy::ddp, .experts = true, .capacity = capacity};
    const auto expected = run_context(cut, text.corpus(), 1)[0].load;
    ASSERT_EQ(sum_of(expected.dropped(3)) > 0, capacity);
    for (const int context : {2, 4}) {
      cut.context = cut.ranks = context;
      for (const auto& rank : run_context(cut, text.corpus(), 1)) EXPECT_EQ(rank.load, expected) << context;
    }
  }
}

const Cut kStages{
    .ranks = 4, .stages = 2, .strategy = Strategy::zero3, .experts = true, .capacity = true, .context = 2};

const Cut kSpread{.ranks = 4, .experts = true, .capacity = true, .expert_parallel = 4, .context = 2};

const Cut kPieces{
    .ranks = 4, .experts = true, .capacity = true, .expert_parallel = 4, .context = 2, .pieces = 4};

const Cut kLayers{.ranks = 4, .tensor = 2, .sequence = true, .experts = true, .capacity = true, .context = 2};

TEST(ContextOfExperts, AnswersAsOneRank) {
  const TrainingText text;
  const tests::ScratchFolder folder;
  const auto said_of = [&](const Cut& cut) {
    auto options = context_options(cut);
    // This is how Mixtral is, so that there is something to export it as.
    options.model.query_key_norm = false;
    options.model.tied_embeddings = false;
    options.model.experts.shared_feed_forward = 0;
    options.model.experts.dense_layers.clear();
    options.model.experts.names = ExpertConfig::Names::mixtral;
    return ask(cut, options, text.corpus(), folder.path("exported"));
  };
  const auto whole = said_of({.strategy = Strategy::ddp, .experts = true, .capacity = true})[0];
  for (const Cut& cut : {kStages, kLayers, kSpread, kPieces}) {
    const auto shared = said_of(without_stages(cut))[0];

    const auto ranks = said_of(cut);

    EXPECT_NEAR(shared.evaluation, whole.evaluation, 1e-5 * whole.evaluation);
    ASSERT_EQ(shared.logits.size(), whole.logits.size());
    for (std::size_t v = 0; v < whole.logits.size(); ++v)
      ASSERT_NEAR(shared.logits[v], whole.logits[v], 1e-4);
    ASSERT_EQ(shared.exported.size(), whole.exported.size());
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank.evaluation, shared.evaluation) << cut.name();
      EXPECT_EQ(rank.logits, shared.logits) << cut.name();
      EXPECT_EQ(rank.parameters, shared.parameters) << cut.name();
    }
    EXPECT_EQ(ranks[0].exported, shared.exported) << cut.name();
  }
}

// Covers model-12.
TEST(ContextOfExperts, GoesOnFromCheckpointsOfAnyOtherMesh) {
  const TrainingText text;
  const auto with_experts = [](Cut cut) {
    cut.experts = cut.capacity = true;
    return cut;
  };
  const Cut alone = with_experts({.strategy = Strategy::ddp});
  const Cut pair = with_experts({.ranks = 2, .strategy = Strategy::zero3, .context = 2});
  const Cut four = with_experts({.ranks = 4, .context = 4});
  const Cut spread = with_experts({.ranks = 2, .expert_parallel = 2});
  const Cut both =
      with_experts({.ranks = 4, .strategy = Strategy::zero3, .expert_parallel = 4, .context = 2});
  const auto expected = one_rank(true, true, text.corpus());
  const auto uninterrupted = run_context(pair, text.corpus(), 6)[0];
  for (const auto& [from, to] : {std::pair{alone, pair},
                                 {pair, alone},
                                 {pair, four},
                                 {four, pair},
                                 {pair, kLayers},
                                 {kLayers, pair},
                                 {spread, pair},
                                 {pair, spread},
                                 {both, pair},
                                 {pair, both},
                                 {pair, kStages},
                                 {kStages, pair}}) {
    actors::SimulatedStorage disk({});
    run_context(from, text.corpus(), 3, &disk);
    const auto ranks = run_context(to, text.corpus(), 6, &disk);
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank.losses.size(), 3U);
      for (std::size_t step = 0; step < 3; ++step) {
        const double loss = expected.losses[3 + step];
        ASSERT_NEAR(rank.losses[step], loss, 1e-5 * loss) << from.name() << " to " << to.name();
      }
      if (from.stages > 1 || to.stages > 1) {
        EXPECT_EQ(rank.parameters, uninterrupted.parameters) << from.name() << " to " << to.name();
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
