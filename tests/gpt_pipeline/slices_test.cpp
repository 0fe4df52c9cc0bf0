#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "tests/gpt_pipeline/context_job.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

constexpr int kSteps = 4;

/// A model whose layers can be cut in eight, with all that is summed over slices: biases of sums, norms of
/// queries and keys, and gates of shared experts.
TrainerOptions sliced_options(const Cut& cut) {
  auto options = trainer_options(cut);
  auto& model = options.model;
  model.layers = 2;
  model.width = 32;
  model.heads = 8;
  model.feed_forward = 32;
  model.vocabulary = 128;
  model.query_key_norm = true;
  model.query_key_value_bias = true;
  model.attention_output_bias = true;
  if (cut.experts) model.experts.shared_gate = true;
  options.session.training.lanes = 4;
  return options;
}

std::vector<Trained> train_sliced(const Cut& cut, int until = kSteps, actors::Storage* disk = nullptr) {
  const TrainingText text;
  const auto options = sliced_options(cut);
  return simulate(
      cut, [&](actors::SimulatedRank& rank) { return train_until(rank, options, text.corpus(), until); },
      disk);
}

/// One rank with whole layers and sequences.
const Trained& alone(const Cut& cut) {
  static std::map<std::tuple<int, int, bool, bool>, Trained> known;
  auto& found = known[{cut.all_slices(), cut.all_pieces(), cut.tied, cut.experts}];
  if (found.losses.empty()) found = train_sliced(without_stages(cut))[0];
  return found;
}

class Slices : public testing::TestWithParam<Cut> {};

TEST_P(Slices, HaveTheBitsOfOneRankOnAnyMesh) {
  const auto& expected = alone(GetParam());
  ASSERT_EQ(expected.losses.size(), static_cast<std::size_t>(kSteps));

  for (const auto& rank : train_sliced(GetParam())) {
    EXPECT_EQ(rank.losses, expected.losses);
    EXPECT_EQ(rank.norms, expected.norms);
    EXPECT_EQ(rank.parameters, expected.parameters);
  }
}

constexpr Strategy kStrategies[] = {Strategy::ddp,   Strategy::zero1, Strategy::zero2,
                                    Strategy::zero3, Strategy::hsdp,  Strategy::hfsdp};

class Meshes {
 public:
  void add(Cut cut, int data_parallel) {
    cut.ranks = cut.tensor * cut.stages * cut.context * data_parallel;
    const bool has_copies = cut.strategy == Strategy::hsdp || cut.strategy == Strategy::hfsdp;
    cut.copies = has_copies ? 2 : 1;
    if (data_parallel % cut.copies == 0) all_.push_back(cut);
  }
  /// The strategies and numbers of data-parallel ranks take turns.
  void add_next(const Cut& cut) {
    Cut next = cut;
    next.strategy = kStrategies[turn_++ % 6];
    add(next, next.strategy == Strategy::hsdp || next.strategy == Strategy::hfsdp ? 2 : 1 + turn_ % 2);
  }
  std::vector<Cut> take() { return std::move(all_); }

 private:
  std::vector<Cut> all_;
  int turn_ = 0;
};

/// Four and eight slices on as many ranks as divide them, with everything else that a job may be cut by.
std::vector<Cut> meshes() {
  Meshes all;
  for (const int slices : {4, 8}) {
    for (const int tensor : {1, 2, 4, 8}) {
      if (tensor > slices) continue;
      for (const bool sequence : {false, true}) {
        if (sequence && tensor == 1) continue;
        const Cut cut{.tensor = tensor, .sequence = sequence, .slices = slices};
        for (const auto strategy : kStrategies) {
          Cut next = cut;
          next.strategy = strategy;
          if (tensor < 8) all.add(next, 2);
        }
        all.add(cut, 1);
        Cut next = cut;
        next.stages = 2;
        for (const auto schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
          next.schedule = schedule;
          next.tied = schedule == ScheduleKind::one_f_one_b;
          if (tensor < 8) all.add_next(next);
        }
        next = cut;
        next.experts = true;
        all.add_next(next);
        next.expert_parallel = 2;
        if (tensor < 8) all.add(next, 2);
        for (const int context : {1, 2, 4}) {
          if (tensor * context > 8) continue;
          next = cut;
          next.context = context;
          next.pieces = 4;
          for (const bool experts : {false, true}) {
            next.experts = experts;
            all.add_next(next);
            all.add_next(next);
          }
          next.expert_parallel = std::max(context, 2);
          all.add(next, 2);
          next.experts = false;
          next.expert_parallel = 1;
          next.stages = 2;
          all.add_next(next);
        }
      }
    }
  }
  return all.take();
}

INSTANTIATE_TEST_SUITE_P(Meshes, Slices, testing::ValuesIn(meshes()), testing::PrintToStringParamName());

/// Each mesh takes one step from the checkpoint of the one before it.
TEST(SlicedJob, GoesOnFromTheCheckpointsOfAnyOtherMesh) {
  for (const bool experts : {false, true}) {
    const Cut one{.tied = false, .slices = 4, .experts = experts};
    Meshes meshes;
    const auto next = [&](int data_parallel, const std::function<void(Cut&)>& change) {
      Cut cut = one;
      change(cut);
      meshes.add(cut, data_parallel);
    };
    next(1, [](Cut& cut) { cut.tensor = 4; });
    next(2, [](Cut& cut) { cut.strategy = Strategy::zero3; });
    next(2, [](Cut& cut) { cut.tensor = 2, cut.sequence = true, cut.strategy = Strategy::hfsdp; });
    next(1, [](Cut& cut) { cut.stages = 2, cut.schedule = ScheduleKind::zero_bubble; });
    next(1, [](Cut& cut) { cut.tensor = 2, cut.stages = 2, cut.strategy = Strategy::zero2; });
    next(1, [](Cut&) {});
    next(2, [&](Cut& cut) { cut.tensor = 4, cut.sequence = true, cut.expert_parallel = experts ? 2 : 1; });
    next(4, [&](Cut& cut) { cut.strategy = Strategy::ddp, cut.expert_parallel = experts ? 4 : 1; });
    const auto all = meshes.take();
    const auto expected = train_sliced(one, static_cast<int>(all.size()))[0];
    actors::SimulatedStorage disk({});

    for (std::size_t step = 0; step < all.size(); ++step) {
      for (const auto& rank : train_sliced(all[step], static_cast<int>(step) + 1, &disk)) {
        ASSERT_EQ(rank.losses, std::vector<double>{expected.losses[step]}) << all[step];
        if (step + 1 == all.size()) {
          EXPECT_EQ(rank.parameters, expected.parameters);
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
