#include <cmath>

#include "tests/gpt_session/gpu_mesh.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

class TensorOnGpus : public MeshOnGpus {};

TEST_F(TensorOnGpus, HasTheLossesOfOneGpuOverTwentySteps) {
  expect_twenty_steps_of_one_gpu({{.size = 2}, {.size = 2, .sequence = true}});
}

TEST_F(TensorOnGpus, SeesOneSetOfBitsInAnyStrategy) {
  expect_the_same_bits({{.size = 2},
                        {.size = 2, .data_parallel = 2, .strategy = Strategy::ddp},
                        {.size = 2, .data_parallel = 2, .strategy = Strategy::zero1},
                        {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3}},
                       DType::f32);
  expect_the_same_bits({{.size = 2, .sequence = true},
                        {.size = 2, .data_parallel = 2, .sequence = true, .strategy = Strategy::zero1},
                        {.size = 2, .data_parallel = 2, .sequence = true, .strategy = Strategy::zero3}},
                       DType::bf16, add_all_of_it);
}

TEST_F(TensorOnGpus, OfFourRanksSeesAboutWhatOneGpuDoes) {
  expect_the_same_bits({{.size = 4}}, DType::bf16);
  expect_the_same_bits({{.size = 4, .sequence = true}}, DType::f32);
}

TEST_F(TensorOnGpus, FastWithRecomputedActivationsIsCloseToOneGpu) {
  const auto change = [](TrainerOptions& options) {
    options.session.training.numerics = core::Numerics::fast;
    options.session.training.microbatches = 2;
    options.arithmetic.keep = Keep::inputs;
  };
  for (const bool sequence : {false, true})
    expect_the_same_bits({{.size = 2, .sequence = sequence}}, DType::f32, change);
}

/// Stages hand on own rows, and a tied embedding is on the first and the last one, each rank's part.
TEST_F(TensorOnGpus, InStagesSeesTheBitsOfUncutModels) {
  expect_the_same_bits({{.size = 2, .sequence = true},
                        {.size = 2, .sequence = true, .stages = 2},
                        {.size = 2, .sequence = true, .strategy = Strategy::zero3, .stages = 2}},
                       DType::bf16, add_a_layer);
  expect_the_same_bits({{.size = 2}, {.size = 2, .stages = 2, .schedule = core::ScheduleKind::gpipe}},
                       DType::f32, add_all_of_it_and_a_layer);
}

/// Each rank has a part of each expert, and all decide alike where tokens go.
TEST_F(TensorOnGpus, OfExpertsSeesTheSameBitsWhereverTheyAre) {
  expect_the_same_bits({{.size = 2},
                        {.size = 2, .data_parallel = 2, .experts = 2},
                        {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3, .experts = 2},
                        {.size = 2, .strategy = Strategy::zero3, .stages = 2}},
                       DType::f32, add_experts);
  expect_the_same_bits(
      {{.size = 2, .sequence = true},
       {.size = 2, .data_parallel = 2, .sequence = true, .experts = 2},
       {.size = 2, .sequence = true, .stages = 2, .schedule = core::ScheduleKind::zero_bubble}},
      DType::f32, add_experts);
}

/// What is gathered of rows is kept for the weights' half, or copied.
TEST_F(TensorOnGpus, InStagesThatSplitBackwardSeesUncutModelsBits) {
  const auto split = core::ScheduleKind::zero_bubble;
  expect_the_same_bits(
      {{.size = 2, .sequence = true},
       {.size = 2, .sequence = true, .stages = 2, .schedule = split},
       {.size = 2, .sequence = true, .strategy = Strategy::zero3, .stages = 2, .schedule = split}},
      DType::bf16, add_a_layer);
  expect_the_same_bits({{.size = 2}, {.size = 2, .stages = 2, .schedule = split}}, DType::f32,
                       add_all_of_it_and_a_layer);
  expect_the_same_bits(
      {{.size = 2, .sequence = true}, {.size = 2, .sequence = true, .stages = 2, .schedule = split}},
      DType::f32, add_all_of_it_and_a_layer);
}

TEST_F(TensorOnGpus, GoesOnFromCheckpointsOfOtherMeshes) {
  expect_to_go_on_from_each_other({{.size = 2, .sequence = true},
                                   {},
                                   {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3},
                                   {.size = 2, .sequence = true, .stages = 2}});
}

/// Rank 0 writes what the others hand over.
TEST_F(TensorOnGpus, ExportsWholeTensors) {
  const tests::ScratchFolder folder;
  const auto exported = [&](const GpuMesh& mesh) {
    auto options = options_of(mesh, DType::bf16, 20);
    add_a_layer(options);
    const auto said = ask_all(mesh.ranks(), options, folder.path("exported"));
    EXPECT_TRUE(said[0]) << said[0].error().message;
    return said[0] ? said[0]->exported : std::string();
  };
  const auto whole = exported({}), expected = exported({.size = 2});
  ASSERT_FALSE(whole.empty());

  EXPECT_EQ(expected.size(), whole.size());
  EXPECT_TRUE(exported({.size = 2, .data_parallel = 2, .strategy = Strategy::zero3}) == expected);
  EXPECT_TRUE(exported({.size = 2, .stages = 2}) == expected);
}

TEST_F(TensorOnGpus, RefusesWhatItDoesNotCut) {
  const auto refusal = [&](const GpuMesh& mesh, const Change& change) {
    auto options = options_of(mesh, DType::bf16, 20);
    change(options);
    const auto ranks = train_all(mesh.ranks(), options);
    for (const auto& rank : ranks) EXPECT_FALSE(rank);
    return ranks[0] ? std::string() : ranks[0].error().message;
  };

  EXPECT_NE(
      refusal({}, [](TrainerOptions& options) { options.tensor.slices = 2; }).find("one slice of each layer"),
      std::string::npos);
}

}  // namespace
}  // namespace troupe::apps::gpt
