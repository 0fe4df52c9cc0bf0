#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/rank_model.hpp"
#include "apps/gpt/text/data.hpp"

namespace troupe::apps::gpt {

/// What a rank sent along one axis.
struct AxisTraffic {
  std::string axis;
  actors::TrainerGroup::Sent sent;

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

/// The model trained by a session: one of any number of ranks, on the world's device. What it computes
/// depends on the options, the corpus and the kind of device, not on the number of ranks.
class DistributedTrainer {
 public:
  /// Joins the job of `world`. The corpus and the world must outlive the trainer. `device_bytes` is the
  /// device's memory, if known: what does not fit is refused before anything is allocated.
  static core::Result<std::unique_ptr<DistributedTrainer>> create(
      actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus,
      std::optional<std::size_t> device_bytes = {});
  ~DistributedTrainer();

  /// `wishes` are bits of Wish.
  core::Result<actors::StepOutcome> step(std::uint32_t wishes = 0);

  /// What the ranks had in memory from before this epoch, if the session continues from it: then there is
  /// nothing to resume.
  const std::optional<actors::Restored>& recovered() const { return recovered_; }
  /// Continues from a checkpoint, if there is one. Before the first step, by all ranks alike.
  core::Result<std::optional<actors::Restored>> resume(const actors::RestoreOptions& options);
  /// Saves in the background; see actors::Session::save. The checkpoint records what the run's data and
  /// learning rates depend on.
  core::Result<void> save();
  /// Like save(), into the local tier.
  core::Result<void> save_local();

  /// If true, no rank keeps all parameters or computes alone: evaluate(), logits(), export_model() and
  /// parameter_hash() must be called by all ranks together; otherwise any rank may call them alone.
  bool has_sharded_parameters() const { return session_->units() > 0 || model_->needs_others(); }
  /// Mean loss over `batches` microbatches that cover the evaluation text evenly.
  core::Result<std::optional<double>> evaluate(std::size_t batches);
  /// Like RankModel::logits().
  core::Result<std::span<const float>> logits(TokenSpan tokens);
  /// Writes the model as gpt::export_model() does. If parameters are sharded, the other ranks call
  /// hand_over_parameters() meanwhile.
  core::Result<void> export_model(const ExportOptions& options);
  core::Result<void> hand_over_parameters();
  /// Where the tokens of all ranks went since the last call, or since the run began. By all ranks together,
  /// between steps.
  core::Result<ExpertTally> take_expert_load();
  /// By all ranks together; empty if the model is not cut into stages.
  core::Result<std::optional<PipelineTimeline>> pipeline_timeline() { return model_->timeline(); }
  /// What this rank sent in the last step along each axis: for "data" by the session's program, for "tensor",
  /// "pipeline", "context" and "experts" by the groups that the model computes with. Empty before the first
  /// step.
  const std::vector<AxisTraffic>& traffic() const { return traffic_; }
  /// A hash of all parameters, independent of how they are shared.
  core::Result<std::uint64_t> parameter_hash();

  /// The biases of all routers, (layers, experts); null without ExpertConfig::bias_rate. They change from
  /// step to step.
  const std::vector<float>* router_biases() const { return biases_.get(); }

  actors::Session& session() { return *session_; }
  double learning_rate_of(core::Step step) const { return options_.schedule.learning_rate(step); }
  std::int64_t tokens_per_step() const;

 private:
  /// What the run's data and learning rates depend on, and where its tokens went.
  core::Result<core::Value> description();
  /// Takes the routers' biases from the session.
  core::Result<void> read_biases();
  DistributedTrainer(actors::RankWorld& world, const TrainerOptions& options, const Corpus& corpus);
  core::Result<void> open(actors::RankWorld& world);
  core::Result<void> write_initial_values();
  /// Finds the groups of each axis, if there are any.
  void find_groups();
  /// Sent since the session began.
  std::vector<AxisTraffic> sent_by_groups() const;

  TrainerOptions options_;
  gpu::Device* device_;
  const Corpus* corpus_;
  std::unique_ptr<RankModel> model_;
  std::unique_ptr<actors::Session> session_;
  std::vector<std::pair<std::string, actors::TrainerGroup*>> groups_;  ///< axis by axis
  std::vector<AxisTraffic> traffic_of_data_;                           ///< in every step
  std::vector<AxisTraffic> traffic_;                                   ///< in the last step
  std::shared_ptr<std::vector<float>>
      biases_;  ///< the models read them; null without ExpertConfig::bias_rate
  std::optional<actors::Restored> recovered_;
  ExpertTally told_load_;  ///< the part of the load that take_expert_load() has returned
};

}  // namespace troupe::apps::gpt
