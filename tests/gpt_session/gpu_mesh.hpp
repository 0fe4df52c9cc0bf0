#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/apps_gpt/shared_training.hpp"
#include "tests/gpt_session/gpu_trainer.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Strategy;

/// How a job on GPUs shares its model.
struct GpuMesh {
  int size = 1;
  int data_parallel = 1;
  bool sequence = false;
  Strategy strategy = Strategy::zero1;
  int stages = 1;
  core::ScheduleKind schedule = core::ScheduleKind::one_f_one_b;
  int chunks = 1;
  int context = 1;
  int experts = 1;  ///< ranks that they are spread over
  int pieces = 0;   ///< of each sequence; 0: one for each of the ranks that share it

  int ranks() const { return size * context * data_parallel * stages; }
  std::string name() const {
    return fmt::format("{} on {}x{}x{}{}, {} stages, experts over {}, {} pieces", core::name_of(strategy),
                       size, context, data_parallel, sequence ? " by rows" : "", stages, experts, pieces);
  }
};

using Change = std::function<void(TrainerOptions&)>;

inline TrainerOptions options_of(const GpuMesh& mesh, DType dtype, int steps) {
  auto options = trainer_options(dtype);
  options.model = {.layers = 1, .heads = 4, .width = 16, .feed_forward = 32, .context = 8, .vocabulary = 128};
  options.model.head_dimension = 8;
  options.schedule.total = core::Step{steps};
  options.pipeline = {mesh.schedule, mesh.chunks};
  options.tensor.sequence_parallel = mesh.sequence;
  auto& training = options.session.training;
  training.strategy = mesh.strategy;
  training.tensor_parallel = mesh.size;
  training.context_parallel = mesh.context;
  training.context_pieces = mesh.pieces;
  training.expert_parallel = mesh.experts;
  training.pipeline_parallel = mesh.stages;
  training.lanes = 2;
  training.microbatches = 1;
  return options;
}

/// Shared keys, norms of heads, biases, and norms with means.
inline void add_all_of_it(TrainerOptions& options) {
  options.model.key_value_heads = 2;
  options.model.query_key_norm = true;
  options.model.query_key_value_bias = true;
  options.model.attention_output_bias = true;
  options.model.norm = Norm::layer;
  options.model.activation = Activation::gelu;
  options.model.tied_embeddings = false;
}

/// Some of which are dropped, and one that all tokens share.
inline void add_experts(TrainerOptions& options) {
  options.model.layers = 2;
  options.model.tied_embeddings = false;
  options.model.experts = {.count = 4, .choices = 2, .feed_forward = 16, .shared_feed_forward = 16};
  options.model.experts.shared_gate = true;
  options.model.experts.capacity_factor = 1.25;
  options.model.experts.balance = 0.1;
  options.model.experts.z_loss = 0.01;
}

inline void add_a_layer(TrainerOptions& options) {
  options.model.layers = 2;
}

inline void add_all_of_it_and_a_layer(TrainerOptions& options) {
  add_all_of_it(options);
  add_a_layer(options);
}

/// Ranks meet in the middle of layers, on streams, in the device's memory; kernels of the emulated NCCL run
/// one after another in the order of their launches.
class MeshOnGpus : public TrainerOnGpus {
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
    EXPECT_EQ(trained.load.counts(), whole.load.counts()) << name;
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

  void expect_twenty_steps_of_one_gpu(const std::vector<GpuMesh>& meshes) {
    const auto change = [](TrainerOptions& options) {
      add_all_of_it_and_a_layer(options);
      options.session.training.lanes = 1;
    };
    const Trained whole = train({}, DType::f32, 20, change)[0];
    ASSERT_LT(whole.losses.back(), whole.losses.front());
    for (const auto& mesh : meshes) {
      const auto trained = train(mesh, DType::f32, 20, change);
      expect_close(trained[0], whole, 1e-5, mesh.name());
      for (const auto& rank : trained) EXPECT_TRUE(rank == trained[0]) << mesh.name();
      double worst = 0;
      for (std::size_t step = 0; step < whole.losses.size(); ++step)
        worst = std::max(worst, std::abs(trained[0].losses[step] / whole.losses[step] - 1));
      RecordProperty("worst", fmt::format("{}: {:.1e}", mesh.name(), worst));
    }
  }

  /// Each job takes two steps and saves for the next one.
  void expect_to_go_on_from_each_other(const std::vector<GpuMesh>& chain) {
    const Trained whole =
        train({}, DType::f32, 2 * static_cast<int>(chain.size()), add_all_of_it_and_a_layer)[0];
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
};

}  // namespace troupe::apps::gpt
