#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "apps/gpt/distributed_trainer.hpp"
#include "core/errors.hpp"
#include "tests/gpu_session/company.hpp"
#include "tests/sharding/meshes.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

std::string write_text() {
  const std::string path = testing::TempDir() + "gpt_session_text";
  std::ofstream text(path);
  for (int i = 0; i < 2000; ++i) text << (i * i % 7 == 3 ? "to be " : "or not ");
  return path;
}

/// TROUPE_STEPS asks for longer jobs, and for all meshes where the suite has those of few ranks.
const int kSteps = static_cast<int>(tests::number_in_environment("TROUPE_STEPS", 3));

std::vector<tests::ShardingMesh> meshes() {
  auto meshes = tests::sharding_meshes();
  std::erase_if(meshes, [](const auto& mesh) { return kSteps == 3 && mesh.ranks() > 4; });
  return meshes;
}

TrainerOptions trainer_options(core::DType dtype) {
  TrainerOptions options;
  options.model = {.layers = 1, .heads = 2, .width = 16, .feed_forward = 24, .context = 8, .vocabulary = 128};
  options.arithmetic.dtype = dtype;
  options.microbatch = {.batch = 1, .length = 8};
  options.session.training.lanes = 4;
  options.session.training.microbatches = 2;
  options.session.training.bucket_elements = 1500;
  options.session.training.clip_norm = 1;
  options.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup = core::Step{1}, .total = core::Step{kSteps}};
  return options;
}

/// What a rank saw.
struct Seen {
  std::vector<double> losses;
  double evaluation = 0;
  std::uint64_t parameters = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Result<Seen> train(actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  Seen seen;
  for (int step = 0; step < kSteps; ++step) seen.losses.push_back(TRY(trainer->step()).loss);
  seen.evaluation = TRY(trainer->evaluate(2));
  seen.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return seen;
}

/// One step of a job that goes on where the newest checkpoint of its directory ends, and saves another.
Result<Seen> go_on(actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  TRY(trainer->resume({}));
  Seen seen;
  seen.losses.push_back(TRY(trainer->step()).loss);
  TRY(trainer->save());
  TRY(trainer->session().wait_saves());
  for (const auto& save : trainer->session().take_saves()) TRY(save.committed);
  seen.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return seen;
}

/// What a job of that many steps has seen after each of them, without a restore.
Result<std::vector<Seen>> watch(actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus,
                                std::size_t steps) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  std::vector<Seen> seen(steps);
  for (auto& each : seen) {
    each.losses.push_back(TRY(trainer->step()).loss);
    each.parameters = TRY(trainer->parameter_hash());
  }
  TRY(trainer->session().leave());
  return seen;
}

class TrainerOnGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(company_.violations(), std::vector<std::string>{}); }

  std::vector<Result<Seen>> train_all(int ranks, const TrainerOptions& options) {
    return company_.run<Seen>(ranks,
                              [&](actors::RankWorld& world) { return train(world, options, corpus_); });
  }
  std::vector<Seen> watch_one(const TrainerOptions& options, std::size_t steps) {
    const auto play = [&](actors::RankWorld& world) { return watch(world, options, corpus_, steps); };
    return company_.run<std::vector<Seen>>(1, play)[0].value();
  }
  std::vector<Result<Seen>> go_on_all(int ranks, const TrainerOptions& options,
                                      const std::string& directory) {
    return company_.run<Seen>(
        ranks, [&](actors::RankWorld& world) { return go_on(world, options, corpus_); }, directory);
  }

 private:
  actors::EmulatedCompany company_;
  const Corpus corpus_ = Corpus::open(write_text(), 8).value();
};

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

TEST_F(ShardedTrainerOnGpus, SeesTheBitsOfOneRankInBf16WithMainValuesInF32) {
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

/// Each job takes one step and saves for the next one: every strategy is left and entered, on one rank and
/// more, with main values and moments that are cut in as many ways.
TEST_F(TrainerOnGpus, GoOnFromCheckpointsOfAnyStrategyWithTheSameBits) {
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
