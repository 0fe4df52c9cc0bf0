#include <cmath>

#include "tests/gpt_session/gpu_trainer.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;
using core::Strategy;

/// How a job on GPUs shares its layers.
struct GpuMesh {
  int size = 1;
  int data_parallel = 1;
  bool sequence = false;
  Strategy strategy = Strategy::zero1;
  int stages = 1;
  core::ScheduleKind schedule = core::ScheduleKind::one_f_one_b;
  int chunks = 1;

  int ranks() const { return size * data_parallel * stages; }
  std::string name() const {
    return fmt::format("{} on {}x{}{}, {} stages", core::name_of(strategy), size, data_parallel,
                       sequence ? " by rows" : "", stages);
  }
};

using Change = std::function<void(TrainerOptions&)>;

TrainerOptions options_of(const GpuMesh& mesh, DType dtype, int steps) {
  auto options = trainer_options(dtype);
  options.model = {.layers = 1, .heads = 4, .width = 16, .feed_forward = 32, .context = 8, .vocabulary = 128};
  options.model.head_dimension = 8;
  options.schedule.total = core::Step{steps};
  options.pipeline = {mesh.schedule, mesh.chunks};
  options.tensor.sequence_parallel = mesh.sequence;
  auto& training = options.session.training;
  training.strategy = mesh.strategy;
  training.tensor_parallel = mesh.size;
  training.pipeline_parallel = mesh.stages;
  training.lanes = 2;
  training.microbatches = 1;
  return options;
}

/// Shared keys, norms of heads, biases, and norms with means.
void add_all_of_it(TrainerOptions& options) {
  options.model.key_value_heads = 2;
  options.model.query_key_norm = true;
  options.model.query_key_value_bias = true;
  options.model.attention_output_bias = true;
  options.model.norm = Norm::layer;
  options.model.activation = Activation::gelu;
  options.model.tied_embeddings = false;
}

void add_a_layer(TrainerOptions& options) {
  options.model.layers = 2;
}

void add_all_of_it_and_a_layer(TrainerOptions& options) {
  add_all_of_it(options);
  add_a_layer(options);
}

/// What a rank saw.
struct Trained {
  std::uint64_t initial = 0;  ///< a hash of the parameters, before the first step
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::vector<float> logits;
  std::uint64_t parameters = 0;  ///< a hash, at the end
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Steps from the checkpoint that is there, and saves one more, where there is storage.
core::Result<Trained> train_shared(actors::RankWorld& world, const TrainerOptions& options,
                                   const Corpus& corpus, int steps) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  if (world.storage() != nullptr) TRY(trainer->resume({}));
  Trained trained;
  trained.initial = TRY(trainer->parameter_hash());
  for (int step = 0; step < steps; ++step) {
    const auto outcome = TRY(trainer->step());
    trained.losses.push_back(outcome.loss);
    trained.norms.push_back(outcome.gradient_norm);
  }
  trained.evaluation = TRY(trainer->evaluate(2));
  const std::int32_t tokens[] = {'t', 'o', ' '};
  const auto logits = TRY(trainer->logits(tokens));
  trained.logits.assign(logits.begin(), logits.end());
  trained.parameters = TRY(trainer->parameter_hash());
  if (world.storage() != nullptr) {
    TRY(trainer->save());
    TRY(trainer->session().wait_saves());
    for (const auto& save : trainer->session().take_saves()) TRY(save.committed);
  }
  TRY(trainer->session().leave());
  return trained;
}

/// Ranks meet in the middle of layers, on streams, in the device's memory; kernels of the emulated NCCL run
/// one after another in the order of their launches.
class TensorOnGpus : public TrainerOnGpus {
 protected:
  std::vector<Trained> train(
      const GpuMesh& mesh, DType dtype, int steps, const Change& change = [](TrainerOptions&) {},
      const std::string& directory = {}) {
    auto options = options_of(mesh, dtype, 20);
    change(options);
    const auto play = [&](actors::RankWorld& world) { return train_shared(world, options, corpus(), steps); };
    std::vector<Trained> trained;
    for (auto& rank : company().run<Trained>(mesh.ranks(), play, directory)) {
      EXPECT_TRUE(rank) << mesh.name() << ": " << rank.error().message;
      trained.push_back(rank ? *rank : Trained{});
    }
    return trained;
  }

  /// Losses, norms, evaluation and logits, of the same job with whole layers.
  static void expect_close(const Trained& trained, const Trained& whole, double tolerance,
                           const std::string& name) {
    ASSERT_EQ(trained.losses.size(), whole.losses.size()) << name;
    EXPECT_EQ(trained.initial, whole.initial) << name << ": first values are those of the whole";
    for (std::size_t step = 0; step < whole.losses.size(); ++step) {
      EXPECT_NEAR(trained.losses[step], whole.losses[step], tolerance * whole.losses[step])
          << name << ", step " << step;
      EXPECT_NEAR(trained.norms[step], whole.norms[step], 10 * tolerance * whole.norms[step])
          << name << ", step " << step;
    }
    EXPECT_NEAR(trained.evaluation, whole.evaluation, tolerance * whole.evaluation) << name;
    ASSERT_EQ(trained.logits.size(), whole.logits.size()) << name;
    for (std::size_t v = 0; v < whole.logits.size(); ++v)
      EXPECT_NEAR(trained.logits[v], whole.logits[v], 10 * tolerance) << name;
  }

  /// All of them and all their ranks see what the first one does, and about what one GPU does.
  void expect_the_same_bits(
      const std::vector<GpuMesh>& meshes, DType dtype, const Change& change = [](TrainerOptions&) {}) {
    const Trained whole = train({}, dtype, 2, change)[0];
    std::optional<Trained> first;
    for (const auto& mesh : meshes) {
      for (const auto& rank : train(mesh, dtype, 2, change)) {
        if (!first) expect_close(first.emplace(rank), whole, dtype == DType::f32 ? 1e-5 : 5e-3, mesh.name());
        EXPECT_TRUE(rank == *first) << mesh.name();
      }
    }
  }
};

TEST_F(TensorOnGpus, HasTheLossesOfOneGpuOverTwentySteps) {
  const auto change = [](TrainerOptions& options) {
    add_all_of_it_and_a_layer(options);
    options.session.training.lanes = 1;
  };
  const Trained whole = train({}, DType::f32, 20, change)[0];
  ASSERT_LT(whole.losses.back(), whole.losses.front());
  for (const bool sequence : {false, true}) {
    const GpuMesh mesh{.size = 2, .sequence = sequence};
    const auto trained = train(mesh, DType::f32, 20, change);
    expect_close(trained[0], whole, 1e-5, mesh.name());
    EXPECT_TRUE(trained[1] == trained[0]);
    double worst = 0;
    for (std::size_t step = 0; step < whole.losses.size(); ++step)
      worst = std::max(worst, std::abs(trained[0].losses[step] / whole.losses[step] - 1));
    RecordProperty(sequence ? "worst_by_rows" : "worst", fmt::format("{:.1e}", worst));
  }
}

TEST_F(TensorOnGpus, SeesTheSameBitsInAnyStrategyOnAnyDataParallelRanks) {
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

TEST_F(TensorOnGpus, InFastNumericsAndWithActivationsComputedAgainSeesAboutWhatOneGpuDoes) {
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

/// What is gathered of rows is kept for the weights' half, or copied.
TEST_F(TensorOnGpus, InStagesThatSplitBackwardSeesTheBitsOfUncutModels) {
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

/// Each job takes two steps and saves for the next one.
TEST_F(TensorOnGpus, GoesOnFromCheckpointsOfOtherMeshes) {
  const GpuMesh chain[] = {{.size = 2, .sequence = true},
                           {},
                           {.size = 2, .data_parallel = 2, .strategy = Strategy::zero3},
                           {.size = 2, .sequence = true, .stages = 2}};
  const Trained whole = train({}, DType::f32, 2 * std::size(chain), add_all_of_it_and_a_layer)[0];
  const tests::ScratchFolder checkpoints;
  std::uint64_t saved = whole.initial;
  std::size_t step = 0;

  for (const auto& mesh : chain) {
    const auto ranks = train(mesh, DType::f32, 2, add_all_of_it_and_a_layer, checkpoints.path());
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank.initial, saved) << mesh.name();
      ASSERT_EQ(rank.parameters, ranks[0].parameters) << mesh.name();
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_NEAR(rank.losses[i], whole.losses[step + i], 1e-5 * whole.losses[step + i]) << mesh.name();
    }
    saved = ranks[0].parameters;
    step += 2;
  }
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

  EXPECT_EQ(
      refusal({.size = 2},
              [](TrainerOptions& options) { options.model.experts = {.count = 4, .feed_forward = 16}; }),
      "on a GPU ranks do not share layers with experts, found 4 experts and 2 ranks; leave out "
      "--experts or --tensor-parallel, or train with --device host");
  EXPECT_NE(
      refusal({}, [](TrainerOptions& options) { options.tensor.slices = 2; }).find("in slices on the host"),
      std::string::npos);
}

}  // namespace
}  // namespace troupe::apps::gpt
