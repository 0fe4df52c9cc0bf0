#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/context/context_rank.hpp"
#include "apps/gpt/data.hpp"
#include "apps/gpt/experts/session_peers.hpp"
#include "apps/gpt/models.hpp"
#include "apps/gpt/pipeline/pipeline_trainer.hpp"
#include "apps/gpt/run_options.hpp"
#include "apps/gpt/tensor/tensor_rank.hpp"

namespace troupe::apps::gpt {

/// The model trained by a session: one of any number of ranks, on the world's device. What it computes
/// depends on the options, the corpus and the kind of device, not on the number of ranks.
class DistributedTrainer {
 public:
  /// Joins the job of `world`. The corpus and the world must outlive the trainer. `device_bytes` is the
  /// device's memory, where it is known: what does not fit is refused before anything is allocated.
  static core::Result<std::unique_ptr<DistributedTrainer>> create(
      actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus,
      std::optional<std::size_t> device_bytes = {});

  /// `wishes` are bits of Wish.
  core::Result<actors::StepOutcome> step(std::uint32_t wishes = 0);

  /// Goes on from a checkpoint, when there is one. Before the first step, by all ranks alike.
  core::Result<std::optional<actors::Restored>> resume(const actors::RestoreOptions& options);
  /// Saves in the background; see actors::Session::save. The checkpoint names what the run's data and
  /// learning rates depend on.
  core::Result<void> save();
  /// As save(), into the local tier.
  core::Result<void> save_local();

  /// No rank keeps all parameters, or computes alone: evaluate(), logits(), export_model() and
  /// parameter_hash() are then for all ranks together; otherwise any rank may ask alone.
  bool has_sharded_parameters() const {
    return session_->units() > 0 || peers_ != nullptr || tensor_ != nullptr || context_ != nullptr ||
           pipeline_ != nullptr;
  }
  /// Mean loss over `batches` microbatches which cover the evaluation text evenly.
  core::Result<double> evaluate(std::size_t batches);
  /// As TrainableModel::logits().
  core::Result<std::span<const float>> logits(TrainableModel::Tokens tokens);
  /// Writes the model as export_model() does. Of sharded parameters the other ranks call
  /// hand_over_parameters() meanwhile. Errc::unavailable where experts are spread over ranks.
  core::Result<void> export_model(const ExportOptions& options);
  core::Result<void> hand_over_parameters();
  /// Where the tokens of all ranks went since the last call, or since the run began. For all ranks together,
  /// between steps.
  core::Result<ExpertTally> take_expert_load();
  /// For all ranks together; nothing where the model is not cut into stages.
  core::Result<std::optional<PipelineTimeline>> pipeline_timeline() {
    return pipeline_ ? pipeline_->timeline() : std::optional<PipelineTimeline>{};
  }
  /// A hash of all parameters, the same however they are shared.
  core::Result<std::uint64_t> parameter_hash();

  actors::Session& session() { return *session_; }
  double learning_rate() const { return options_.schedule.learning_rate(session_->next_step()); }
  std::int64_t tokens_per_step() const;

 private:
  /// What the run's data and learning rates depend on, and where its tokens went.
  core::Result<core::Value> description();
  core::Result<void> sum_expert_load();
  DistributedTrainer(actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus);
  core::Result<void> open(actors::RankWorld& world);
  core::Result<std::unique_ptr<TrainableModel>> make_model();
  core::Result<void> make_pipeline(actors::RankWorld& world, std::vector<core::ParameterSpec>& specs);
  core::Result<void> write_initial_values();
  core::Result<void> warm_up();
  core::Result<double> run_lane(core::Lane lane);
  /// Waits until a parameter may be read, and notes where it lies.
  core::Result<void> before_use(core::ParameterIndex parameter);
  /// For a pass between steps.
  StepHooks reading();
  /// Elements of what this rank keeps of a parameter as floats; `values` has as many as the range.
  core::Result<void> read_parameter(core::ParameterIndex parameter, core::ElementRange range,
                                    std::span<float> values);
  /// All of a parameter whose layer ranks share, for which they all ask, in an evaluation. It lives until the
  /// next call.
  core::Result<std::span<const float>> whole_parameter(core::ParameterIndex parameter);
  core::Result<gpu::BufferView> on_host(gpu::BufferView values, gpu::Buffer& staging);

  TrainerOptions options_;
  gpu::Device* device_;
  const Corpus* corpus_;
  Batch batch_;
  std::unique_ptr<TensorRank> tensor_;         ///< null where no ranks share a layer
  std::unique_ptr<ContextRank> context_;       ///< null where no ranks share a sequence
  std::unique_ptr<PipelineTrainer> pipeline_;  ///< in place of `model_` where the model is cut into stages
  std::vector<ParameterSpec> kept_;            ///< of the model, by this rank, as the session has them
  std::unique_ptr<actors::Session> session_;
  gpu::StreamView compute_ = nullptr;  ///< of the session; null where the model computes on the host
  std::unique_ptr<TrainableModel> model_;
  std::vector<const std::byte*> readable_;  ///< of units that are not gathered: where they were last
  std::vector<float*> gradients_;
  actors::TrainerGroup* all_ranks_ = nullptr;  ///< null without experts
  ExpertTally expert_load_;                    ///< of all ranks, since the run began
  ExpertTally told_load_;                      ///< what take_expert_load() has told of it
  std::unique_ptr<SessionPeers> peers_;        ///< null: all experts are here
};

/// The parameters of the model as a session registers them, in the order of forward, with the groups that the
/// training has.
std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training);

}  // namespace troupe::apps::gpt
