#include <map>

#include "tests/gpt_pipeline/pipeline_job.hpp"

namespace troupe::apps::gpt {
namespace {

constexpr int kSteps = 20;

std::vector<Trained> run(const Cut& cut, const Corpus& corpus) {
  return simulate(cut, [&](actors::SimulatedRank& rank) {
    return train_until(rank, trainer_options(cut), corpus, kSteps);
  });
}

/// What one rank computes, which does not depend on the strategy.
const Trained& alone(bool tied, const Corpus& corpus) {
  static std::map<bool, Trained> known;
  auto& found = known[tied];
  if (found.losses.empty()) found = run({.tied = tied, .strategy = core::Strategy::ddp}, corpus).front();
  return found;
}

std::vector<Cut> cuts() {
  using core::ScheduleKind;
  using core::Strategy;
  const std::vector<std::pair<ScheduleKind, int>> schedules{{ScheduleKind::gpipe, 1},
                                                            {ScheduleKind::one_f_one_b, 1},
                                                            {ScheduleKind::interleaved, 2},
                                                            {ScheduleKind::zero_bubble, 1}};
  std::vector<Cut> all;
  for (const bool tied : {true, false}) {
    for (const auto& [schedule, chunks] : schedules) {
      for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        for (const int stages : {2, 4}) {
          for (const int data_parallel : {1, 2})
            all.push_back({stages * data_parallel, stages, schedule, chunks, tied, strategy});
        }
      }
      for (const auto strategy : {Strategy::hsdp, Strategy::hfsdp})
        all.push_back({8, 2, schedule, chunks, tied, strategy, 1, false, 1, 2});
    }
  }
  // An odd ring, and layers that do not divide.
  all.push_back({3, 3, ScheduleKind::one_f_one_b, 1, true, Strategy::zero1});
  // A last round in which some ranks have no lane.
  for (const auto strategy : {Strategy::zero2, Strategy::zero3}) {
    for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
      all.push_back({6, 2, schedule, 1, true, strategy});
  }
  return all;
}

class PipelineBits : public testing::TestWithParam<Cut> {};

// Covers reduce-10, finish-8, beyond-2.
TEST_P(PipelineBits, AreThoseOfOneRank) {
  const TrainingText text;
  const Corpus& corpus = text.corpus();

  const auto& expected = alone(GetParam().tied, corpus);
  const auto ranks = run(GetParam(), corpus);

  ASSERT_EQ(expected.losses.size(), std::size_t{kSteps});
  ASSERT_LT(expected.losses.back(), expected.losses.front());
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.parameters, expected.parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PipelineBits, testing::ValuesIn(cuts()), testing::PrintToStringParamName());

/// Experts are where their layer is; what balance adds to the loss comes from all stages.
class PipelineExperts : public testing::TestWithParam<Cut> {};

TEST_P(PipelineExperts, HaveTheBitsAndTheLoadOfOneRank) {
  const TrainingText text;
  Cut alone{.tied = GetParam().tied, .strategy = core::Strategy::ddp, .experts = true};
  alone.capacity = GetParam().capacity;
  const auto expected = run(alone, text.corpus()).front();

  const auto ranks = run(GetParam(), text.corpus());

  ASSERT_EQ(expected.losses.size(), std::size_t{kSteps});
  ASSERT_LT(expected.losses.back(), expected.losses.front());
  ASSERT_GT(expected.load.chosen(7)[0], 0);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.parameters, expected.parameters);
    EXPECT_EQ(rank.load, expected.load);
  }
}

std::vector<Cut> cuts_of_experts() {
  using core::ScheduleKind;
  using core::Strategy;
  std::vector<Cut> all;
  for (const auto strategy : {Strategy::zero1, Strategy::zero3}) {
    for (const bool capacity : {false, true}) {
      all.push_back({4, 2, ScheduleKind::one_f_one_b, 1, true, strategy, 1, false, 1, 1, true, capacity});
      all.push_back({4, 4, ScheduleKind::gpipe, 1, false, strategy, 1, false, 1, 1, true, capacity});
      all.push_back({8, 4, ScheduleKind::interleaved, 2, true, strategy, 1, false, 1, 1, true, capacity});
      all.push_back({4, 4, ScheduleKind::zero_bubble, 1, true, strategy, 1, false, 1, 1, true, capacity});
      // Experts that the two ranks of a stage share, or each two of four.
      all.push_back({4, 2, ScheduleKind::zero_bubble, 1, false, strategy, 1, false, 1, 1, true, capacity, 2});
      all.push_back({4, 2, ScheduleKind::one_f_one_b, 1, true, strategy, 1, false, 1, 1, true, capacity, 2});
      all.push_back({8, 2, ScheduleKind::gpipe, 1, false, strategy, 1, false, 1, 1, true, capacity, 2});
      all.push_back({8, 2, ScheduleKind::one_f_one_b, 1, true, strategy, 1, false, 1, 1, true, capacity, 4});
      if (strategy == Strategy::zero3)
        all.push_back(
            {4, 2, ScheduleKind::interleaved, 2, true, strategy, 1, false, 1, 1, true, capacity, 2});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuts, PipelineExperts, testing::ValuesIn(cuts_of_experts()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::apps::gpt
