#include "tests/gpt_pipeline/pipeline_job.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;

// Covers state-3, model-2, model-20.
TEST(PipelineCheckpoint, OfAnyCutGoesOnBitwiseOnAnyOther) {
  const TrainingText text;
  const auto train = [&](const Cut& cut, int until, actors::Storage* disk) {
    return simulate(
        cut,
        [&](actors::SimulatedRank& rank) {
          return train_until(rank, trainer_options(cut), text.corpus(), until);
        },
        disk);
  };
  for (const bool tied : {true, false}) {
    const auto expected = train({.tied = tied}, 6, nullptr).front();
    const Cut alone{.tied = tied};
    const Cut two{2, 2, ScheduleKind::one_f_one_b, 1, tied, core::Strategy::ddp};
    const Cut chunks{4, 2, ScheduleKind::interleaved, 2, tied, core::Strategy::zero1};
    const Cut split{4, 4, ScheduleKind::zero_bubble, 1, tied, core::Strategy::zero1};
    const Cut sharded{2, 1, ScheduleKind::one_f_one_b, 1, tied, core::Strategy::zero3};
    const Cut both{4, 2, ScheduleKind::interleaved, 2, tied, core::Strategy::zero3};
    const Cut copies{8, 2, ScheduleKind::zero_bubble, 1, tied, core::Strategy::hsdp, 1, false, 1, 2};
    for (const auto& [from, to] : {std::pair{two, alone},
                                   {alone, split},
                                   {split, chunks},
                                   {chunks, alone},
                                   {sharded, two},
                                   {chunks, sharded},
                                   {both, alone},
                                   {split, both},
                                   {both, copies},
                                   {copies, sharded}}) {
      actors::SimulatedStorage disk({});

      train(from, 3, &disk);
      const auto ranks = train(to, 6, &disk);

      for (const auto& rank : ranks) {
        ASSERT_EQ(rank.losses.size(), 3U) << "it goes on after the saved step";
        EXPECT_EQ(rank.losses.back(), expected.losses.back()) << from.name() << " to " << to.name();
        EXPECT_EQ(rank.parameters, expected.parameters) << from.name() << " to " << to.name();
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
