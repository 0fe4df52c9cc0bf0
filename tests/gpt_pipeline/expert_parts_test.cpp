#include <cmath>
#include <map>
#include <string>

#include "tests/gpt_pipeline/context_job.hpp"

// Experts that are cut over more ranks than layers are, so that data-parallel neighbours have their other
// parts, or over fewer, so that the ranks that share a layer have different ones.

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

const Trained& one_rank(bool capacity, const Corpus& corpus) {
  static std::map<bool, Trained> known;
  auto& found = known[capacity];
  const Cut alone{.strategy = Strategy::ddp, .experts = true, .capacity = capacity};
  if (found.losses.empty()) found = run_context(alone, corpus, 20)[0];
  return found;
}

/// The fewest ranks that have as many parts of everything, and one piece each.
Cut plainest(const Cut& cut) {
  Cut found = cut;
  found.context = cut.all_pieces();
  found.pieces = 0;
  found.stages = found.chunks = found.copies = 1;
  found.expert_parallel = std::max(cut.tensor / cut.expert_tensor, 1);
  found.schedule = ScheduleKind::one_f_one_b;
  found.strategy = Strategy::ddp;
  found.ranks = std::max(cut.expert_tensor, cut.tensor * found.context);
  return found;
}

const Trained& plainest_of(const Cut& cut, const Corpus& corpus) {
  static std::map<std::string, Trained> known;
  auto& found = known[plainest(cut).name()];
  if (found.losses.empty()) found = run_context(plainest(cut), corpus, 20)[0];
  return found;
}

std::vector<Cut> cuts_of_parts() {
  std::vector<Cut> all;
  const auto add = [&](Cut cut, int data_parallel) {
    cut.experts = true;
    cut.sequence = cut.tensor > 1;
    cut.ranks = cut.stages * cut.tensor * cut.context * data_parallel;
    all.push_back(cut);
  };
  for (const bool capacity : {false, true}) {
    for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero3}) {
      add({.strategy = strategy, .capacity = capacity, .expert_tensor = 2}, 4);
      add({.strategy = strategy, .capacity = capacity, .expert_parallel = 2, .expert_tensor = 2}, 4);
      add({.strategy = strategy, .tensor = 2, .capacity = capacity, .expert_tensor = 4}, 2);
      add({.strategy = strategy, .tensor = 2, .capacity = capacity, .expert_parallel = 2, .expert_tensor = 4},
          4);
      add({.strategy = strategy, .capacity = capacity, .context = 2, .expert_tensor = 2}, 2);
      add({.stages = 2, .strategy = strategy, .capacity = capacity, .expert_tensor = 2}, 2);
      const Cut whole{
          .strategy = strategy, .tensor = 2, .capacity = capacity, .expert_parallel = 2, .expert_tensor = 1};
      add(whole, 1);
      add(whole, 2);
      Cut spread = whole;
      spread.expert_parallel = 4;
      add(spread, 2);
      spread.stages = 2;
      add(spread, 2);
      Cut context = whole;
      context.context = 2;
      add(context, 1);
      context.expert_parallel = 4;
      add(context, 1);
      context.pieces = 4;
      add(context, 1);
      context = whole;
      context.pieces = 2;
      add(context, 1);
      add({.strategy = strategy, .capacity = capacity, .pieces = 2, .expert_tensor = 2}, 2);
    }
    add({.stages = 2,
         .schedule = ScheduleKind::zero_bubble,
         .strategy = Strategy::zero3,
         .capacity = capacity,
         .expert_parallel = 2,
         .expert_tensor = 2},
        4);
  }
  return all;
}

class ExpertParts : public testing::TestWithParam<Cut> {};

// Covers reduce-11, reduce-12.
TEST_P(ExpertParts, HaveEqualPartsBitsAndOneRanksLosses) {
  const TrainingText text;
  const Cut& cut = GetParam();

  const auto& expected = plainest_of(cut, text.corpus());
  const auto& whole = one_rank(cut.capacity, text.corpus());
  const auto ranks = run_context(cut, text.corpus(), 20);

  ASSERT_EQ(whole.losses.size(), 20U);
  ASSERT_LT(whole.losses.back(), whole.losses.front());
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.parameters, expected.parameters);
    EXPECT_EQ(rank.load, expected.load);
    for (std::size_t step = 0; step < whole.losses.size(); ++step) {
      ASSERT_NEAR(rank.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << "step " << step;
      ASSERT_NEAR(rank.norms[step], whole.norms[step], 1e-4 * whole.norms[step]) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, ExpertParts, testing::ValuesIn(cuts_of_parts()),
                         testing::PrintToStringParamName());

TEST(ExpertPartsOfAModel, BeginWithTheValuesOfOneRank) {
  const TrainingText text;
  const auto whole = run_context({.strategy = Strategy::ddp, .experts = true}, text.corpus(), 0)[0];
  for (const Cut& cut :
       {Cut{.ranks = 2, .experts = true, .expert_tensor = 2},
        Cut{.ranks = 4, .tensor = 2, .sequence = true, .experts = true, .expert_tensor = 4},
        Cut{.ranks = 2, .tensor = 2, .experts = true, .expert_parallel = 2, .expert_tensor = 1},
        Cut{.ranks = 4, .tensor = 2, .experts = true, .expert_parallel = 4, .expert_tensor = 1},
        Cut{.ranks = 4,
        .strategy = Strategy::zero3,
        .experts = true,
        .expert_parallel = 2,
        .expert_tensor = 2}}) {
    for (const auto& rank : run_context(cut, text.corpus(), 0))
      EXPECT_EQ(rank.parameters, whole.parameters) << cut.name();
  }
}

/// Evaluations, logits and exports have whole experts.
TEST(ExpertPartsOfAModel, AnswerAsOneRank) {
  const TrainingText text;
  const tests::ScratchFolder folder;
  const auto said_of = [&](const Cut& cut) {
    auto options = context_options(cut);
    options.model.query_key_norm = false;
    options.model.tied_embeddings = false;
    options.model.experts.shared_feed_forward = 0;
    options.model.experts.dense_layers.clear();
    options.model.experts.names = ExpertConfig::Names::mixtral;
    return ask(cut, options, text.corpus(), folder.path("exported"));
  };
  const auto whole = said_of({.strategy = Strategy::ddp, .experts = true})[0];
  const Cut pair{.ranks = 2, .strategy = Strategy::ddp, .experts = true, .expert_tensor = 2};
  const Cut both{
      .ranks = 4, .strategy = Strategy::zero3, .experts = true, .expert_parallel = 2, .expert_tensor = 2};
  const Cut stages{.ranks = 4, .stages = 2, .strategy = Strategy::zero1, .experts = true, .expert_tensor = 2};
  const Cut columns{
      .ranks = 2, .tensor = 2, .sequence = true, .experts = true, .expert_parallel = 2, .expert_tensor = 1};
  Cut spread = columns;
  spread.ranks = spread.expert_parallel = 4;
  spread.strategy = Strategy::zero3;
  for (const auto& [least, others] : {std::pair{pair, std::vector{both, stages}}, {columns, {spread}}}) {
    const auto expected = said_of(least)[0];
    EXPECT_NEAR(expected.evaluation, whole.evaluation, 1e-5 * whole.evaluation) << least.name();
    ASSERT_EQ(expected.exported.size(), whole.exported.size());
    for (const Cut& cut : others) {
      const auto ranks = said_of(cut);
      EXPECT_EQ(ranks[0].exported, expected.exported) << cut.name();
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank.evaluation, expected.evaluation) << cut.name();
        EXPECT_EQ(rank.logits, expected.logits) << cut.name();
        EXPECT_EQ(rank.parameters, expected.parameters) << cut.name();
      }
    }
  }
}

// Covers model-12, state-14.
TEST(ExpertPartsOfAModel, GoOnFromCheckpointsOfAnyOtherMesh) {
  const TrainingText text;
  const Cut alone{.strategy = Strategy::ddp, .experts = true};
  const Cut pair{.ranks = 2, .strategy = Strategy::zero3, .experts = true, .expert_tensor = 2};
  const Cut both{
      .ranks = 4, .strategy = Strategy::zero1, .experts = true, .expert_parallel = 2, .expert_tensor = 2};
  const Cut spread{.ranks = 2, .experts = true, .expert_parallel = 2};
  const Cut whole{
      .ranks = 2, .tensor = 2, .sequence = true, .experts = true, .expert_parallel = 2, .expert_tensor = 1};
  const auto& expected = one_rank(false, text.corpus());
  for (const auto& [from, to] : {std::pair{alone, pair},
                                 {pair, whole},
                                 {whole, both},
                                 {both, spread},
                                 {spread, whole},
                                 {whole, alone}}) {
    actors::SimulatedStorage disk({});
    run_context(from, text.corpus(), 3, &disk);
    for (const auto& rank : run_context(to, text.corpus(), 6, &disk)) {
      ASSERT_EQ(rank.losses.size(), 3U) << from.name() << " to " << to.name();
      for (std::size_t step = 0; step < 3; ++step) {
        const double loss = expected.losses[3 + step];
        ASSERT_NEAR(rank.losses[step], loss, 1e-5 * loss) << from.name() << " to " << to.name();
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
