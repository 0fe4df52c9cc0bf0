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
  std::vector<Cut> all;
  for (const auto strategy : {core::Strategy::ddp, core::Strategy::zero1}) {
    for (const bool tied : {true, false}) {
      for (const int stages : {2, 4}) {
        for (const int data_parallel : {1, 2}) {
          for (const auto& [schedule, chunks] : {std::pair{ScheduleKind::gpipe, 1},
                                                 {ScheduleKind::one_f_one_b, 1},
                                                 {ScheduleKind::interleaved, 2},
                                                 {ScheduleKind::zero_bubble, 1}})
            all.push_back({stages * data_parallel, stages, schedule, chunks, tied, strategy});
        }
      }
    }
  }
  // An odd ring, and layers that do not divide.
  all.push_back({3, 3, ScheduleKind::one_f_one_b, 1, true, core::Strategy::zero1});
  return all;
}

class PipelineBits : public testing::TestWithParam<Cut> {};

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

INSTANTIATE_TEST_SUITE_P(Cuts, PipelineBits, testing::ValuesIn(cuts()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace troupe::apps::gpt
