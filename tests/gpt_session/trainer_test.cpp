#include "tests/gpt_session/gpu_trainer.hpp"

#include <tuple>

#include "tests/sharding/meshes.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

std::vector<tests::ShardingMesh> meshes() {
  auto meshes = tests::sharding_meshes();
  std::erase_if(meshes, [](const auto& mesh) { return kSteps == 3 && mesh.ranks() > 4; });
  return meshes;
}

std::vector<tests::ShardingMesh> one_mesh_per_strategy() {
  using core::Strategy;
  return {{Strategy::ddp, 1, 2},   {Strategy::zero1, 1, 4}, {Strategy::zero2, 1, 2},
          {Strategy::zero3, 1, 3}, {Strategy::hsdp, 2, 2},  {Strategy::hfsdp, 2, 2}};
}

TEST_F(TrainerOnGpus, SeesTheSameBitsOnAnyNumberOfRanks) {
  for (const auto dtype : {core::DType::bf16, core::DType::f32}) {
    const auto alone = train_all(1, trainer_options(dtype))[0];
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_LT(alone->losses.back(), alone->losses.front());

    for (int ranks : {2, 4}) {
      for (const auto& seen : train_all(ranks, trainer_options(dtype))) {
        ASSERT_TRUE(seen) << seen.error().message;
        EXPECT_EQ(*seen, *alone) << ranks << " ranks in " << core::name_of(dtype);
      }
    }
  }
}

/// Parameters and gradients that come and go unit by unit, on a stream that computes while they move; main
/// values in f32 where parameters are bf16.
class ShardedTrainerOnGpus : public TrainerOnGpus {
 protected:
  void expect_bits_of_one_rank(TrainerOptions options, const std::vector<tests::ShardingMesh>& meshes) {
    options.model.layers = 2;
    options.session.training.lanes = 8;
    options.session.training.microbatches = 1;
    const auto alone = train_all(1, options)[0];
    ASSERT_TRUE(alone) << alone.error().message;

    for (const auto& mesh : meshes) {
      options.session.training.strategy = mesh.strategy;
      options.session.training.optimizer_instances = mesh.outer;
      for (const auto& seen : train_all(mesh.ranks(), options)) {
        ASSERT_TRUE(seen) << mesh.name() << ": " << seen.error().message;
        EXPECT_EQ(*seen, *alone) << mesh.name();
      }
    }
  }
};

// Covers shard-9, unit-30.
TEST_F(ShardedTrainerOnGpus, KeepsOneRanksBitsWithF32MainValues) {
  auto options = trainer_options(core::DType::bf16);
  options.model.tied_embeddings = false;
  expect_bits_of_one_rank(options, meshes());
}

TEST_F(ShardedTrainerOnGpus, SeesTheBitsOfOneRankInF32) {
  using core::Strategy;
  expect_bits_of_one_rank(trainer_options(core::DType::f32), {{Strategy::zero2, 1, 2},
                                                              {Strategy::zero3, 1, 2},
                                                              {Strategy::zero3, 1, 3},
                                                              {Strategy::hsdp, 2, 2},
                                                              {Strategy::hfsdp, 2, 2}});
}

// Covers reduce-2.
TEST_F(ShardedTrainerOnGpus, SeesOneRanksBitsWhenGradientsTravelAsBf16) {
  auto options = trainer_options(core::DType::bf16);
  options.session.training.wire_dtype = core::DType::bf16;
  options.session.training.staging_elements = 500;
  expect_bits_of_one_rank(options, one_mesh_per_strategy());
}

/// Values that blocks hold, gathered as these; and other losses than those of bf16's own values.
// Covers shard-7.
TEST_F(ShardedTrainerOnGpus, SeesOneRanksBitsFromBlockwiseGatheredMatrices) {
  auto options = trainer_options(core::DType::bf16);
  const auto wide = train_all(1, options)[0];
  ASSERT_TRUE(wide) << wide.error().message;
  RecordProperty("last_loss_of_bf16", fmt::format("{}", wide->losses.back()));
  for (const auto element : {core::DType::f8_e4m3, core::DType::f8_e5m2}) {
    options.gather_dtype = element;
    const auto alone = train_all(1, options)[0];
    ASSERT_TRUE(alone) << alone.error().message;
    RecordProperty(fmt::format("last_loss_of_{}", core::name_of(element)),
                   fmt::format("{}", alone->losses.back()));
    EXPECT_NE(*alone, *wide);
    EXPECT_LT(alone->losses.back(), alone->losses.front());
  }
  expect_bits_of_one_rank(options, one_mesh_per_strategy());
}

/// Each job takes one step and saves for the next one: every strategy is left and entered, on one rank and
/// more, with main values and moments that are cut in as many ways.
// Covers shard-2, state-13.
TEST_F(TrainerOnGpus, GoOnFromAnyStrategysCheckpointsBitwise) {
  using core::Strategy;
  const std::tuple<Strategy, int, int> chain[] = {
      {Strategy::ddp, 1, 1},   {Strategy::zero1, 1, 2}, {Strategy::zero2, 1, 4}, {Strategy::zero3, 1, 2},
      {Strategy::hsdp, 2, 2},  {Strategy::zero3, 1, 4}, {Strategy::hfsdp, 2, 2}, {Strategy::zero2, 1, 2},
      {Strategy::hfsdp, 1, 2}, {Strategy::zero1, 1, 4}, {Strategy::hsdp, 2, 1},  {Strategy::ddp, 1, 2},
      {Strategy::ddp, 1, 1}};
  for (const auto dtype : {core::DType::bf16, core::DType::f32}) {
    auto options = trainer_options(dtype);
    options.model.layers = 2;
    options.session.training.microbatches = 1;
    options.schedule.total = core::Step{std::size(chain)};
    const auto uninterrupted = watch_one(options, std::size(chain));
    const tests::ScratchFolder checkpoints;

    for (std::size_t step = 0; step < std::size(chain); ++step) {
      const auto& [strategy, outer, inner] = chain[step];
      options.session.training.strategy = strategy;
      options.session.training.optimizer_instances = outer;
      for (const auto& seen : go_on_all(outer * inner, options, checkpoints.path())) {
        ASSERT_TRUE(seen) << seen.error().message;
        ASSERT_EQ(*seen, uninterrupted[step]) << "step " << step << ", " << core::name_of(strategy) << " on "
                                              << outer << "x" << inner << " in " << core::name_of(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
