#include "tests/gpt_session/gpu_mesh.hpp"

namespace troupe::apps::gpt {
namespace {

/// Ranks that share each sequence hand each other keys and values in the device's memory.
class ContextOnGpus : public MeshOnGpus {};

TEST_F(ContextOnGpus, HasTheLossesOfOneGpuOverTwentySteps) {
  expect_twenty_steps_of_one_gpu({{.context = 2}, {.context = 4}});
}

TEST_F(ContextOnGpus, SeesOneSetOfBitsInAnyStrategy) {
  expect_the_same_bits({{.context = 2},
                        {.data_parallel = 2, .strategy = Strategy::ddp, .context = 2},
                        {.data_parallel = 2, .strategy = Strategy::zero1, .context = 2},
                        {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2}},
                       DType::f32, add_all_of_it);
  expect_the_same_bits({{.context = 2}, {.strategy = Strategy::zero3, .context = 2}}, DType::bf16,
                       add_a_layer);
}

TEST_F(ContextOnGpus, OfSharedLayersSeesOneSetOfBits) {
  expect_the_same_bits(
      {{.size = 2, .context = 2}, {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3, .context = 2}},
      DType::f32, add_all_of_it);
  expect_the_same_bits({{.size = 2, .sequence = true, .context = 2},
                        {.size = 2, .sequence = true, .strategy = Strategy::zero3, .context = 2}},
                       DType::bf16);
}

TEST_F(ContextOnGpus, FastWithRecomputedActivationsIsCloseToOneGpu) {
  expect_the_same_bits({{.context = 2}}, DType::f32, [](TrainerOptions& options) {
    options.session.training.numerics = core::Numerics::fast;
    options.session.training.microbatches = 2;
    options.microbatch.batch = 2;
    options.arithmetic.keep = Keep::inputs;
  });
}

/// A stage hands on its part of each sequence.
TEST_F(ContextOnGpus, InStagesSeesTheBitsOfUncutModels) {
  expect_the_same_bits(
      {{.context = 2}, {.stages = 2, .context = 2}, {.strategy = Strategy::zero3, .stages = 2, .context = 2}},
      DType::bf16, add_a_layer);
  expect_the_same_bits(
      {{.size = 2, .sequence = true, .context = 2}, {.size = 2, .sequence = true, .stages = 2, .context = 2}},
      DType::f32, add_all_of_it_and_a_layer);
}

TEST_F(ContextOnGpus, InStagesThatSplitBackwardSeesUncutModelsBits) {
  const auto split = core::ScheduleKind::zero_bubble;
  expect_the_same_bits({{.context = 2}, {.stages = 2, .schedule = split, .context = 2}}, DType::bf16,
                       add_all_of_it_and_a_layer);
  expect_the_same_bits({{.size = 2, .sequence = true, .context = 2},
                        {.size = 2, .sequence = true, .stages = 2, .schedule = split, .context = 2}},
                       DType::f32, add_a_layer);
}

TEST_F(ContextOnGpus, GoesOnFromCheckpointsOfOtherMeshes) {
  expect_to_go_on_from_each_other({{.context = 2},
                                   {},
                                   {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2},
                                   {.size = 2},
                                   {.stages = 2, .context = 2}});
}

/// Members decide together about the rows of all.
TEST_F(ContextOnGpus, OfExpertsSeesTheSameBitsAlsoInStages) {
  const auto split = core::ScheduleKind::zero_bubble;
  expect_the_same_bits({{.context = 2},
                        {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2},
                        {.stages = 2, .context = 2},
                        {.stages = 2, .schedule = split, .context = 2},
                        {.context = 2, .experts = 2},
                        {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2, .experts = 4},
                        {.stages = 2, .context = 2, .experts = 2}},
                       DType::f32, add_experts);
  expect_the_same_bits({{.size = 2, .sequence = true, .context = 2},
                        {.size = 2, .sequence = true, .strategy = Strategy::zero3, .context = 2},
                        {.size = 2, .sequence = true, .context = 2, .experts = 2}},
                       DType::f32, add_experts);
  // What is behind the end of a sequence that is filled up takes no token's place.
  expect_the_same_bits({{.context = 2}}, DType::f32, [](TrainerOptions& options) {
    add_experts(options);
    options.model.experts.capacity_factor = 0.5;
  });
}

/// A GPU computes one, two or four of the pieces.
TEST_F(ContextOnGpus, HasTheBitsOfPiecesOnAnyOfThem) {
  const auto split = core::ScheduleKind::zero_bubble;
  expect_the_same_bits({{.context = 4},
                        {.pieces = 4},
                        {.context = 2, .pieces = 4},
                        {.data_parallel = 2, .strategy = Strategy::zero3, .context = 2, .pieces = 4},
                        {.stages = 2, .pieces = 4},
                        {.stages = 2, .schedule = split, .context = 2, .pieces = 4}},
                       DType::f32, add_all_of_it_and_a_layer);
  expect_the_same_bits({{.context = 2}, {.pieces = 2}, {.stages = 2, .pieces = 2}}, DType::bf16, add_a_layer);
}

TEST_F(ContextOnGpus, OfExpertsHasTheBitsOfPiecesToo) {
  expect_the_same_bits({{.context = 4},
                        {.pieces = 4},
                        {.strategy = Strategy::zero3, .context = 2, .experts = 2, .pieces = 4},
                        {.data_parallel = 2, .experts = 2, .pieces = 4},
                        {.stages = 2, .context = 2, .experts = 2, .pieces = 4}},
                       DType::f32, add_experts);
}

TEST_F(ContextOnGpus, RefusesSlices) {
  const auto refusal = [&](const Change& change) {
    auto options = options_of({.context = 2}, DType::bf16, 20);
    change(options);
    const auto ranks = train_all(2, options);
    // A rank may hear that the other one is gone before it comes to its own refusal.
    std::string messages;
    for (const auto& rank : ranks) {
      EXPECT_FALSE(rank);
      if (!rank) messages += rank.error().message + "\n";
    }
    return messages;
  };

  EXPECT_NE(refusal([](auto& options) { options.tensor.slices = 2; }).find("one slice of each layer"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe::apps::gpt
