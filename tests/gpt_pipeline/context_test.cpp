#include <map>
#include <string>

#include "tests/gpt_pipeline/context_job.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

const Trained& expected_of(const Cut& cut, const Corpus& corpus) {
  static std::map<std::string, Trained> known;
  const Cut whole = without_stages(cut);
  auto& found = known[whole.name()];
  if (found.losses.empty()) found = run_context(whole, corpus, 20)[0];
  return found;
}

std::vector<Cut> cuts_of_sequences() {
  std::vector<Cut> all;
  for (const auto& [schedule, chunks] : {std::pair{ScheduleKind::gpipe, 1},
                                         {ScheduleKind::one_f_one_b, 1},
                                         {ScheduleKind::interleaved, 2},
                                         {ScheduleKind::zero_bubble, 1}}) {
    for (const bool tied : {true, false}) {
      for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
        for (const int tensor : {1, 2}) {
          const int data_parallel = tensor == 1 ? 2 : 1;
          all.push_back({.ranks = 2 * 2 * tensor * data_parallel,
                         .stages = 2,
                         .schedule = schedule,
                         .chunks = chunks,
                         .tied = tied,
                         .strategy = strategy,
                         .tensor = tensor,
                         .sequence = tensor > 1,
                         .context = 2});
          if (tensor > 1) continue;
          // Each rank has several pieces; some have experts.
          Cut several = all.back();
          several.experts = strategy == Strategy::zero3;
          several.pieces = 4;
          all.push_back(several);
          several.ranks = several.stages;
          several.context = 1;
          all.push_back(several);
        }
      }
    }
  }
  all.push_back({.ranks = 8, .stages = 2, .strategy = Strategy::ddp, .context = 4});
  return all;
}

/// Stages of which each computes a part of every sequence.
class PipelineContext : public testing::TestWithParam<Cut> {};

TEST_P(PipelineContext, HasTheBitsOfSharedSequencesWithoutStages) {
  const TrainingText text;

  const auto& expected = expected_of(GetParam(), text.corpus());
  const auto ranks = run_context(GetParam(), text.corpus(), 20);

  ASSERT_EQ(expected.losses.size(), 20U);
  ASSERT_LT(expected.losses.back(), expected.losses.front());
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.parameters, expected.parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PipelineContext, testing::ValuesIn(cuts_of_sequences()),
                         testing::PrintToStringParamName());

const Cut kBoth{.ranks = 4, .stages = 2, .tied = true, .strategy = Strategy::zero3, .context = 2};

TEST(PipelineOfContext, LosesNothingOfOneRanksLosses) {
  const TrainingText text;
  const auto whole = run_context({.strategy = Strategy::ddp}, text.corpus(), 20)[0];

  const auto found = run_context(kBoth, text.corpus(), 20)[0];

  for (std::size_t step = 0; step < whole.losses.size(); ++step)
    ASSERT_NEAR(found.losses[step], whole.losses[step], 1e-5 * whole.losses[step]) << step;
}

TEST(PipelineOfContext, AnswersAsWithoutStages) {
  const TrainingText text;
  const tests::ScratchFolder folder;
  const auto said_of = [&](const Cut& cut) {
    return ask(cut, context_options(cut), text.corpus(), folder.path("exported"));
  };

  const auto expected = said_of(without_stages(kBoth))[0];
  const auto ranks = said_of(kBoth);

  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.evaluation, expected.evaluation);
    EXPECT_EQ(rank.logits, expected.logits);
    EXPECT_EQ(rank.parameters, expected.parameters);
  }
  EXPECT_EQ(ranks[0].exported, expected.exported);
}

// Covers model-16.
TEST(PipelineOfContext, GoesOnFromOtherCutsAndBack) {
  const TrainingText text;
  const Cut shared = without_stages(kBoth);
  const Cut split{.ranks = 8,
                  .stages = 4,
                  .schedule = ScheduleKind::zero_bubble,
                  .strategy = Strategy::zero1,
                  .context = 2};
  const auto expected = run_context(shared, text.corpus(), 6)[0];
  for (const auto& [from, to] : {std::pair{shared, kBoth}, {kBoth, shared}, {kBoth, split}, {split, kBoth}}) {
    actors::SimulatedStorage disk({});
    run_context(from, text.corpus(), 3, &disk);
    const auto ranks = run_context(to, text.corpus(), 6, &disk);
    for (const auto& rank : ranks) EXPECT_EQ(rank.parameters, expected.parameters) << to.name();
  }
}

TEST(PipelineOfContext, RefusesUnevenlyCutSequencesBeforeItJoins) {
  const TrainingText text;
  auto options = context_options(kBoth);
  options.microbatch = {2, 10};
  actors::SimulationOptions world;
  world.ranks = {4};
  actors::Simulation simulation(world);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    TRY(DistributedTrainer::create(rank, options, text.corpus()));
    return {};
  });
  for (const auto& result : report.results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message,
              "each piece of a sequence is two runs of its tokens, and 10 tokens cannot be cut in 2 pieces; "
              "choose a context that is a multiple of 4");
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
