#include <algorithm>
#include <numeric>

#include "tests/gpt_session/gpu_trainer.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

/// How a job with experts on GPUs is cut.
struct Spread {
  int ranks = 1;
  int ep = 1;
  Strategy strategy = Strategy::ddp;
  int stages = 1;
  int chunks = 1;
  bool is_split = false;  ///< backward

  ScheduleKind schedule() const {
    if (is_split) return ScheduleKind::zero_bubble;
    return chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  }
  std::string name() const {
    return fmt::format("{} on {} ranks, ep {}, {} stages of {} chunks, {}", core::name_of(strategy), ranks,
                       ep, stages, chunks, core::name_of(schedule()));
  }
};

TrainerOptions options_of(const Spread& spread, core::DType dtype) {
  auto options = trainer_options(dtype);
  options.model.tied_embeddings = false;
  options.model.experts = {.count = 4, .choices = 2, .feed_forward = 16, .shared_feed_forward = 8};
  options.model.experts.shared_gate = true;
  options.model.experts.balance = 0.1;
  options.model.experts.z_loss = 0.01;
  auto& training = options.session.training;
  training.strategy = spread.strategy;
  training.expert_parallel = spread.ep;
  training.pipeline_parallel = spread.stages;
  training.microbatches = 1;
  options.pipeline = {spread.schedule(), spread.chunks};
  return options;
}

using Change = std::function<void(TrainerOptions&)>;
const Change kNoChange = [](TrainerOptions&) {};

/// Rows of tokens go between ranks in the device's memory; kernels of the emulated NCCL run one after another
/// in the order of their launches.
class ExpertsOnGpus : public TrainerOnGpus {
 protected:
  static TrainerOptions changed(const Spread& spread, core::DType dtype, const Change& change) {
    auto options = options_of(spread, dtype);
    change(options);
    return options;
  }
  Seen alone(core::DType dtype, const Change& change) {
    return train_all(1, changed({}, dtype, change))[0].value();
  }
  void expect_bits_of_one_gpu(const std::vector<Spread>& all, core::DType dtype,
                              const Change& change = kNoChange) {
    const Seen expected = alone(dtype, change);
    for (const Spread& spread : all) {
      for (const auto& seen : train_all(spread.ranks, changed(spread, dtype, change))) {
        ASSERT_TRUE(seen) << spread.name() << ": " << seen.error().message;
        EXPECT_EQ(*seen, expected) << spread.name() << " in " << core::name_of(dtype);
      }
    }
  }
};

TEST_F(ExpertsOnGpus, SpreadOverRanksHaveTheBitsOfOneGpu) {
  expect_bits_of_one_gpu({{2, 2, Strategy::ddp}, {4, 2, Strategy::zero1}, {4, 4, Strategy::zero3}},
                         core::DType::f32);
  expect_bits_of_one_gpu({{4, 4, Strategy::zero1}, {2, 2, Strategy::zero3}}, core::DType::bf16);
}

TEST_F(ExpertsOnGpus, DropWhatTheirCapacityDropsOnOneGpu) {
  const Change dropping = [](TrainerOptions& options) {
    options.model.experts.capacity_factor = 0.8;
    options.session.training.microbatches = 2;
    options.session.training.lanes = 2;
  };
  const Seen expected = alone(core::DType::f32, dropping);
  const auto dropped = expected.load.dropped(0);
  EXPECT_GT(std::accumulate(dropped.begin(), dropped.end(), std::int64_t{0}), 0);
  expect_bits_of_one_gpu({{2, 2, Strategy::zero1}}, core::DType::f32, dropping);
  expect_bits_of_one_gpu({{4, 4, Strategy::zero3}}, core::DType::bf16,
                         [](TrainerOptions& options) { options.model.experts.capacity_factor = 0.8; });
}

/// All logits of routers are 0, and of those that are as good the first ones are chosen.
class ToTheFirstExperts final : public InitialValues {
 public:
  core::Result<void> read(const ParameterSpec& spec, core::ElementRange range,
                          std::span<float> values) const override {
    initialise(spec, 1, range, values);
    if (spec.name.find("mlp.gate.weight") != std::string::npos) std::fill(values.begin(), values.end(), 0.0F);
    return {};
  }
};

/// Three of four ranks compute with no rows at all.
TEST_F(ExpertsOnGpus, MayAllGetNothingButOne) {
  const ToTheFirstExperts initial;
  const Change all_to_one = [&](TrainerOptions& options) {
    options.initial = &initial;
    options.model.experts.choices = 1;
    options.model.experts.balance = options.model.experts.z_loss = 0;  // which would move the routers
  };
  const Seen expected = alone(core::DType::f32, all_to_one);
  EXPECT_EQ(expected.load.chosen(0)[0], 8 * 4 * kSteps) << "the tokens of four lanes";
  expect_bits_of_one_gpu({{4, 4, Strategy::zero3}}, core::DType::f32, all_to_one);
}

TEST_F(ExpertsOnGpus, InStagesHaveTheBitsOfOneGpu) {
  const Change deeper = [](TrainerOptions& options) { options.model.layers = 4; };
  expect_bits_of_one_gpu({{2, 1, Strategy::zero1, 2},
                          {4, 1, Strategy::zero3, 2},
                          {2, 1, Strategy::zero1, 2, 2},
                          {4, 2, Strategy::zero3, 2, 2}},
                         core::DType::f32, deeper);
}

/// Rows are exchanged in the first half of backward, and added to gradients in the second.
TEST_F(ExpertsOnGpus, InStagesThatSplitBackwardHaveOneGpusBits) {
  const Change deeper = [](TrainerOptions& options) {
    options.model.layers = 4;
    options.model.experts.capacity_factor = 0.9;
  };
  for (const auto dtype : {core::DType::f32, core::DType::bf16}) {
    expect_bits_of_one_gpu({{2, 1, Strategy::zero1, 2, 1, true},
                            {4, 2, Strategy::ddp, 2, 1, true},
                            {4, 2, Strategy::zero3, 2, 1, true}},
                           dtype, deeper);
  }
}

/// What balance adds in the first layers goes through stages that add nothing.
TEST_F(ExpertsOnGpus, InStagesOfDenseLayersHaveOneGpusBits) {
  const Change mixed = [](TrainerOptions& options) {
    options.model.layers = 3;
    options.model.experts.dense_layers = {1, 2};
    options.session.training.lanes = 2;
    options.session.training.microbatches = 2;
  };
  expect_bits_of_one_gpu({{3, 1, Strategy::zero1, 3}}, core::DType::bf16, mixed);
}

TEST_F(ExpertsOnGpus, OfRoutersWithBiasesHaveOneGpusBits) {
  const Change biased = [](TrainerOptions& options) {
    options.model.layers = 2;
    options.model.experts.bias_rate = 0.05;
    options.model.experts.balance = 0;
  };
  const Change frozen = [&](TrainerOptions& options) {
    biased(options);
    options.model.experts.bias_rate = 1e-9;
  };
  EXPECT_NE(alone(core::DType::f32, biased).losses, alone(core::DType::f32, frozen).losses);
  expect_bits_of_one_gpu({{4, 2, Strategy::zero1, 2}}, core::DType::f32, biased);
}

/// One product for the rows of all ranks adds them to gradients in another order.
TEST_F(ExpertsOnGpus, InFastNumericsComeCloseToOneGpu) {
  const Change fast = [](TrainerOptions& options) {
    options.session.training.numerics = core::Numerics::fast;
  };
  const Seen expected = alone(core::DType::f32, fast);
  for (const auto& seen : train_all(2, changed({2, 2, Strategy::zero3}, core::DType::f32, fast))) {
    ASSERT_TRUE(seen) << seen.error().message;
    EXPECT_EQ(seen->load, expected.load);
    ASSERT_EQ(seen->losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < seen->losses.size(); ++i)
      EXPECT_NEAR(seen->losses[i], expected.losses[i], 1e-6 * expected.losses[i]);
  }
}

TEST_F(ExpertsOnGpus, AnswerAndAreExportedAsOfOneGpu) {
  const tests::ScratchFolder folder;
  const auto ask = [&](const Spread& spread) {
    auto options = options_of(spread, core::DType::bf16);
    options.model.layers = 2;
    options.model.experts = {.count = 4, .feed_forward = 16, .names = ExpertConfig::Names::mixtral};
    return ask_all(spread.ranks, options, folder.path("exported"));
  };
  const auto expected = ask({})[0].value();
  ASSERT_FALSE(expected.exported.empty());

  for (const Spread& spread : {Spread{2, 2, Strategy::zero3}, Spread{4, 2, Strategy::zero3, 2}}) {
    const auto all = ask(spread);
    for (const auto& said : all) {
      ASSERT_TRUE(said) << said.error().message;
      EXPECT_EQ(said->logits, expected.logits) << spread.name();
    }
    EXPECT_EQ(all[0]->exported, expected.exported) << spread.name();
  }
}

/// Each job takes one step and saves for the next one, whose experts are elsewhere.
TEST_F(ExpertsOnGpus, GoOnFromOtherMeshesCheckpointsBitwise) {
  const Spread chain[] = {{2, 2, Strategy::zero1}, {1, 1, Strategy::ddp},      {4, 4, Strategy::zero3},
                          {2, 1, Strategy::zero3}, {4, 2, Strategy::zero1, 2}, {2, 2, Strategy::ddp}};
  const auto options = [&](const Spread& spread) {
    auto found = options_of(spread, core::DType::bf16);
    found.model.layers = 2;
    found.schedule.total = core::Step{std::size(chain)};
    return found;
  };
  const auto uninterrupted = watch_one(options({}), std::size(chain));
  const tests::ScratchFolder checkpoints;

  for (std::size_t step = 0; step < std::size(chain); ++step) {
    for (const auto& seen : go_on_all(chain[step].ranks, options(chain[step]), checkpoints.path())) {
      ASSERT_TRUE(seen) << seen.error().message;
      ASSERT_EQ(*seen, uninterrupted[step]) << "step " << step << ", " << chain[step].name();
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
