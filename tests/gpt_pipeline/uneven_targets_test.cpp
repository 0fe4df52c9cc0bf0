// Lanes, microbatches and pieces of sequences with very different numbers of targets, on every kind of mesh.
#include <map>
#include <set>
#include <tuple>

#include "tests/apps_gpt/masked_text.hpp"
#include "tests/gpt_pipeline/context_job.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

constexpr int kSteps = 4;
constexpr Strategy kStrategies[] = {Strategy::ddp,   Strategy::zero1, Strategy::zero2,
                                    Strategy::zero3, Strategy::hsdp,  Strategy::hfsdp};

class Chats {
 public:
  const Corpus& corpus() const { return corpus_; }

 private:
  tests::ScratchFolder folder_;
  Corpus corpus_ = open_chats(folder_.path("chats.jsonl"), 16);
};

std::vector<Trained> run(const Cut& cut, const Corpus& corpus) {
  auto options = context_options(cut);
  options.microbatch = {2, 16};
  return simulate(cut,
                  [&](actors::SimulatedRank& rank) { return train_until(rank, options, corpus, kSteps); });
}

/// One rank that computes what the cut does, in as many slices of layers; sequences take as many ranks as
/// they have pieces.
const Trained& plainest_of(const Cut& cut, const Corpus& corpus) {
  static std::map<std::tuple<bool, bool, int, int, bool>, Trained> known;
  auto& found = known[{cut.tied, cut.sequence, cut.tensor, cut.context, cut.experts}];
  if (found.losses.empty()) found = run(without_stages(cut), corpus)[0];
  return found;
}

std::vector<Cut> meshes() {
  std::vector<Cut> all;
  const auto add = [&](Cut cut, int data_parallel) {
    cut.ranks = cut.stages * cut.tensor * cut.context * data_parallel;
    const bool has_copies = cut.strategy == Strategy::hsdp || cut.strategy == Strategy::hfsdp;
    if (has_copies && data_parallel / cut.expert_parallel % 2 != 0) return;
    cut.copies = has_copies ? 2 : 1;
    all.push_back(cut);
  };
  for (const auto strategy : kStrategies) {
    for (const int data_parallel : {1, 2, 3, 4}) add({.strategy = strategy}, data_parallel);
    for (const int data_parallel : {1, 2}) {
      add({.stages = 2, .strategy = strategy}, data_parallel);
      add({.strategy = strategy, .tensor = 2, .sequence = true}, data_parallel);
      add({.tied = false, .strategy = strategy, .context = 2}, data_parallel);
      add({.stages = 2, .strategy = strategy, .experts = true}, data_parallel);
    }
    add({.strategy = strategy, .experts = true, .expert_parallel = 2}, 2);
    add({.strategy = strategy, .experts = true, .expert_parallel = 2}, 4);
    add({.strategy = strategy, .tensor = 2, .sequence = true, .experts = true, .context = 2}, 2);
  }
  for (const auto& [schedule, chunks] :
       {std::pair{ScheduleKind::gpipe, 1}, {ScheduleKind::interleaved, 2}, {ScheduleKind::zero_bubble, 1}}) {
    add({.stages = 2, .schedule = schedule, .chunks = chunks, .tied = false, .strategy = Strategy::zero3}, 2);
    add({.stages = 2, .schedule = schedule, .chunks = chunks, .tensor = 2, .context = 2}, 1);
  }
  return all;
}

class UnevenTargets : public testing::TestWithParam<Cut> {};

// Covers finish-13.
TEST_P(UnevenTargets, HaveTheBitsOfTheCutWithoutMesh) {
  const Chats chats;
  const auto& expected = plainest_of(GetParam(), chats.corpus());
  ASSERT_EQ(expected.losses.size(), std::size_t{kSteps});

  for (const auto& rank : run(GetParam(), chats.corpus())) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.targets, expected.targets);
    EXPECT_EQ(rank.parameters, expected.parameters);
  }
}

/// Slices and pieces only add in another order, and do not change what counts.
TEST_P(UnevenTargets, HaveTheLossesOfWholeLayersAndSequences) {
  const Chats chats;
  const Cut whole{.tied = GetParam().tied, .strategy = Strategy::ddp, .experts = GetParam().experts};
  const auto& expected = plainest_of(whole, chats.corpus());
  const auto& found = plainest_of(GetParam(), chats.corpus());

  EXPECT_EQ(found.targets, expected.targets);
  EXPECT_GT(std::set(expected.targets.begin(), expected.targets.end()).size(), 1U) << "steps are uneven";
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5 * expected.losses[step]) << step;
    EXPECT_NEAR(found.norms[step], expected.norms[step], 1e-4 * expected.norms[step]) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, UnevenTargets, testing::ValuesIn(meshes()), [](const auto& each) {
  return each.param.name() + (each.param.experts ? "experts" : "");
});

}  // namespace
}  // namespace troupe::apps::gpt
