#include <tuple>

#include "tests/gpt_session/gpu_trainer.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::ScheduleKind;
using core::Strategy;

/// How a job on GPUs is cut.
struct GpuCut {
  int ranks = 2;
  int stages = 2;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;
  Strategy strategy = Strategy::zero1;
  bool tied = true;

  std::string name() const {
    return fmt::format("{} {}x{} on {}, {}, {}", core::name_of(schedule), stages, chunks, ranks,
                       core::name_of(strategy), tied ? "tied" : "untied");
  }
};

TrainerOptions options_of(const GpuCut& cut, core::DType dtype) {
  auto options = trainer_options(dtype);
  options.model.layers = 4;
  options.model.tied_embeddings = cut.tied;
  options.pipeline = {cut.schedule, cut.chunks};
  auto& training = options.session.training;
  training.strategy = cut.strategy;
  training.pipeline_parallel = cut.stages;
  training.lanes = 8;
  training.microbatches = 1;
  return options;
}

/// Rows go from stage to stage on streams, in the device's memory; kernels of the emulated NCCL run one after
/// another in the order of their launches.
class PipelineOnGpus : public TrainerOnGpus {
 protected:
  Seen alone(const GpuCut& cut, core::DType dtype, const std::function<void(TrainerOptions&)>& change) {
    auto options = options_of({1, 1, ScheduleKind::one_f_one_b, 1, Strategy::ddp, cut.tied}, dtype);
    change(options);
    return train_all(1, options)[0].value();
  }

  void expect_bits_of_one_gpu(
      const std::vector<GpuCut>& cuts, core::DType dtype,
      const std::function<void(TrainerOptions&)>& change = [](TrainerOptions&) {}) {
    for (const auto& cut : cuts) {
      const Seen expected = alone(cut, dtype, change);
      auto options = options_of(cut, dtype);
      change(options);
      for (const auto& seen : train_all(cut.ranks, options)) {
        ASSERT_TRUE(seen) << cut.name() << ": " << seen.error().message;
        EXPECT_EQ(*seen, expected) << cut.name() << " in " << core::name_of(dtype);
      }
    }
  }
};

TEST_F(PipelineOnGpus, OfTwoStagesHasTheBitsOfOneGpu) {
  for (const auto dtype : {core::DType::f32, core::DType::bf16}) {
    expect_bits_of_one_gpu({{.tied = false}, {.tied = true}}, dtype);
  }
}

TEST_F(PipelineOnGpus, OfAnyScheduleHasTheBitsOfOneGpu) {
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::gpipe},
                          {4, 4, ScheduleKind::one_f_one_b, 1, Strategy::zero1, false},
                          {2, 2, ScheduleKind::interleaved, 2}},
                         core::DType::bf16);
  expect_bits_of_one_gpu({{4, 4, ScheduleKind::gpipe}, {3, 3, ScheduleKind::one_f_one_b}}, core::DType::f32);
}

/// A tied embedding's gradient is put off at the first stage, and not at the last one.
TEST_F(PipelineOnGpus, ThatSplitBackwardHasTheBitsOfOneGpu) {
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::zero_bubble, 1, Strategy::zero1, false},
                          {2, 2, ScheduleKind::zero_bubble},
                          {4, 4, ScheduleKind::zero_bubble}},
                         core::DType::f32);
  expect_bits_of_one_gpu(
      {{2, 2, ScheduleKind::zero_bubble}, {4, 4, ScheduleKind::zero_bubble, 1, Strategy::zero1, false}},
      core::DType::bf16);
}

/// Units are gathered for either half, and gradients reduced after the weights'.
TEST_F(PipelineOnGpus, SplittingBackwardHasOneGpusBitsInAnyStrategy) {
  expect_bits_of_one_gpu({{4, 2, ScheduleKind::zero_bubble, 1, Strategy::ddp},
                          {4, 2, ScheduleKind::zero_bubble, 1, Strategy::zero2, false},
                          {4, 2, ScheduleKind::zero_bubble, 1, Strategy::zero3}},
                         core::DType::bf16);
}

TEST_F(PipelineOnGpus, SplittingBackwardAddsUpMicrobatchesOfFullModels) {
  const auto change = [](TrainerOptions& options) {
    options.model.key_value_heads = 1;
    options.model.query_key_norm = true;
    options.model.query_key_value_bias = true;
    options.model.attention_output_bias = true;
    options.model.norm = Norm::layer;
    options.model.activation = Activation::gelu;
    options.session.training.lanes = 3;
    options.session.training.microbatches = 2;
  };
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::zero_bubble}}, core::DType::f32, change);
  expect_bits_of_one_gpu({{3, 3, ScheduleKind::zero_bubble, 1, Strategy::zero1, false}}, core::DType::bf16,
                         change);
}

/// Beside the collectives of data parallelism, which must come in one order with the rows.
TEST_F(PipelineOnGpus, OfAnyStrategyHasTheBitsOfOneGpu) {
  expect_bits_of_one_gpu({{4, 2, ScheduleKind::one_f_one_b, 1, Strategy::ddp},
                          {4, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero1},
                          {4, 2, ScheduleKind::gpipe, 1, Strategy::zero2, false},
                          {4, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero3},
                          {4, 2, ScheduleKind::interleaved, 2, Strategy::zero1, false},
                          {4, 2, ScheduleKind::interleaved, 2, Strategy::zero3}},
                         core::DType::bf16);
}

TEST_F(PipelineOnGpus, WithUnevenLanesHasOneGpusBits) {
  const auto change = [](TrainerOptions& options) { options.session.training.lanes = 5; };
  expect_bits_of_one_gpu({{4, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero1},
                          {4, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero3}},
                         core::DType::f32, change);
}

TEST_F(PipelineOnGpus, RecomputesActivationsAndAddsUpMicrobatches) {
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::gpipe}}, core::DType::bf16, [](TrainerOptions& options) {
    options.arithmetic.keep = Keep::inputs;
    options.session.training.lanes = 2;
    options.session.training.microbatches = 3;
  });
}

TEST_F(PipelineOnGpus, WithSharedKeysNormsBiasesKeepsOneGpusBits) {
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::gpipe}}, core::DType::bf16, [](TrainerOptions& options) {
    options.model.key_value_heads = 1;
    options.model.query_key_norm = true;
    options.model.query_key_value_bias = true;
  });
}

TEST_F(PipelineOnGpus, ScalesLossesOfUntiedModelsAsOneGpu) {
  expect_bits_of_one_gpu({{2, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero1, false}}, core::DType::f32,
                         [](TrainerOptions& options) {
                           options.session.training.loss_scaling = {.kind = core::LossScale::fixed,
                                                                    .scale = 1024};
                         });
}

/// The sum of a tied embedding's part goes over once per step.
TEST_F(PipelineOnGpus, InFastNumericsHasTheLossesOfOneGpu) {
  const auto change = [](TrainerOptions& options) {
    options.session.training.numerics = core::Numerics::fast;
  };
  const Seen expected = alone({}, core::DType::f32, change);
  for (const GpuCut& cut : {GpuCut{}, GpuCut{2, 2, ScheduleKind::zero_bubble}}) {
    auto options = options_of(cut, core::DType::f32);
    change(options);
    for (const auto& seen : train_all(2, options)) {
      ASSERT_TRUE(seen) << seen.error().message;
      ASSERT_EQ(seen->losses.size(), expected.losses.size());
      for (std::size_t i = 0; i < seen->losses.size(); ++i)
        EXPECT_NEAR(seen->losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << cut.name();
    }
  }
}

TEST_F(PipelineOnGpus, AnswersAndIsExportedAsOneGpu) {
  const tests::ScratchFolder folder;
  const auto ask = [&](const GpuCut& cut) {
    return ask_all(cut.ranks, options_of(cut, core::DType::bf16), folder.path("exported"));
  };
  const auto expected = ask({1, 1, ScheduleKind::one_f_one_b, 1, Strategy::ddp})[0].value();
  ASSERT_FALSE(expected.exported.empty());

  for (const GpuCut& cut : {GpuCut{}, GpuCut{2, 2, ScheduleKind::zero_bubble},
                            GpuCut{4, 2, ScheduleKind::interleaved, 2, Strategy::zero3}}) {
    const auto all = ask(cut);
    for (const auto& said : all) {
      ASSERT_TRUE(said) << said.error().message;
      EXPECT_EQ(said->logits, expected.logits) << cut.name();
    }
    EXPECT_EQ(all[0]->exported, expected.exported) << cut.name();
  }
}

/// Each job takes one step and saves for the next one, which is cut in another way.
TEST_F(PipelineOnGpus, GoesOnFromOtherCutsCheckpointsBitwise) {
  const GpuCut chain[] = {{1, 1, ScheduleKind::one_f_one_b, 1, Strategy::ddp},
                          {2, 2, ScheduleKind::one_f_one_b, 1, Strategy::zero1},
                          {4, 2, ScheduleKind::interleaved, 2, Strategy::zero3},
                          {4, 4, ScheduleKind::gpipe, 1, Strategy::ddp},
                          {2, 2, ScheduleKind::zero_bubble, 1, Strategy::zero1},
                          {2, 1, ScheduleKind::one_f_one_b, 1, Strategy::zero3}};
  auto whole = options_of(chain[0], core::DType::bf16);
  whole.schedule.total = core::Step{std::size(chain)};
  const auto uninterrupted = watch_one(whole, std::size(chain));
  const tests::ScratchFolder checkpoints;

  for (std::size_t step = 0; step < std::size(chain); ++step) {
    auto options = options_of(chain[step], core::DType::bf16);
    options.schedule.total = core::Step{std::size(chain)};
    for (const auto& seen : go_on_all(chain[step].ranks, options, checkpoints.path())) {
      ASSERT_TRUE(seen) << seen.error().message;
      ASSERT_EQ(*seen, uninterrupted[step]) << "step " << step << ", " << chain[step].name();
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
