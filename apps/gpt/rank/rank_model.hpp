#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/rank_world.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/context_rank.hpp"
#include "apps/gpt/rank/pipeline_plan.hpp"
#include "apps/gpt/rank/pipeline_timeline.hpp"
#include "apps/gpt/rank/route_losses.hpp"
#include "apps/gpt/rank/session_peers.hpp"
#include "apps/gpt/rank/stage_lanes.hpp"
#include "apps/gpt/rank/stage_passes.hpp"
#include "apps/gpt/rank/tensor_rank.hpp"
#include "apps/gpt/rank/tied_embedding.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/stage_memory.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "apps/gpt/text/data.hpp"
#include "apps/pipeline/runner.hpp"
#include "apps/pipeline/session_links.hpp"
#include "core/element_range.hpp"
#include "core/list.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// A rank's part of the model, and how it computes with the ranks that have the rest: everything that depends
/// on how the model is shared. It has a stage of the layers, or all of them, whole or its share of each.
/// Places are those in the whole model's table. Order of calls: prepare(), the session is joined with
/// parameters() and groups(), open(), the initial values are written, warm_up(). Its memory must outlive the
/// session.
class RankModel final : private StageWork {
 public:
  /// For a rank of `world`, which must outlive it. Errc::invalid_argument and Errc::unavailable name the
  /// impossible option, alike on all ranks.
  static core::Result<std::unique_ptr<RankModel>> create(actors::RankWorld& world,
                                                         const TrainerOptions& options);

  /// The parameters whole, and in this rank's share of the layers.
  const SharedTable& table() const { return share_->table(); }
  /// What the session registers, and the place of each parameter.
  std::vector<core::ParameterSpec> parameters() const;
  const std::vector<std::size_t>& places() const { return parameters_.places(); }
  std::vector<actors::TrainerGroupSpec> groups() const;
  /// What the rank does in its rounds, as in SessionOptions::passes; empty for a rank that has all layers.
  std::vector<core::UnitPass> passes() const { return unit_passes(all_passes_, parameters_); }
  /// What it posts in its lanes, as in SessionOptions::operations, as far as that is declared.
  std::vector<core::DeclaredOperation> operations() const;
  /// Device memory that it takes besides the session's.
  core::Result<std::size_t> bytes() const { return pipeline_bytes(options_, place_, device_.kind()); }

  /// Allocates host memory, so that what does not fit here does not hold up the other ranks.
  core::Result<void> prepare();
  /// Both must outlive the model's last call.
  core::Result<void> open(actors::Session& session, const Corpus& corpus);
  core::Result<void> warm_up();
  /// Releases what computes on the session's stream, because the session is about to end.
  void close();

  /// Plays all lanes of a step that has begun.
  core::Result<void> play_lanes();
  /// Parameters were loaded from elsewhere.
  void forget_copies();
  /// Where the tokens went since the last call; empty without experts.
  ExpertTally take_expert_tally();

  /// Whether the following calls need other ranks, in which case all ranks must make them. In an evaluation
  /// of the session.
  bool needs_others() const {
    const bool shares_sequences = options_.session.training.context_parallel > 1;
    return is_cut() || peers_ || share_->is_shared() || shares_sequences;
  }
  /// Mean loss over all targets of `batches` microbatches that cover the evaluation text evenly; none if they
  /// have no target.
  core::Result<std::optional<double>> evaluate(std::size_t batches);
  /// Logits (V) of the token that follows one sequence of 1..T tokens. Valid until the next call.
  core::Result<std::span<const float>> logits(TokenSpan tokens);
  /// Hashes all parameters, whole and in order.
  core::Result<std::uint64_t> parameter_hash();
  /// Elements of a whole parameter. Rank 0 reads them in the order of places, each from the first to the last
  /// element; the others hand theirs over.
  core::Result<void> read_parameter(std::size_t place, core::ElementRange range, std::span<float> values);
  core::Result<void> hand_over_parameters();

  /// That of the last step, if the model is cut into stages; empty before the first. What a pass waits for
  /// inside the session is included. Stages must share a clock, so they must be on one node.
  core::Result<std::optional<PipelineTimeline>> timeline();

 private:
  RankModel(const TrainerOptions& options, PipelinePlace place, StageCut cut, core::PipelineSchedule schedule,
            gpu::Device& device, std::unique_ptr<TensorRank> share, std::unique_ptr<ContextRank> context);

  core::Result<void> run(const core::PipelinePass& pass, PassSlots slots) override;
  StageRows input(int slot) override { return model_->input(slot); }
  StageRows output(int chunk, int slot) override { return model_->output(chunk, slot); }
  StageRows gradient(int slot) override { return model_->gradient(slot); }
  core::Result<void> take_head(int) override { return owner_->take(); }
  core::Result<void> give_head(int microbatch) override { return copy_->give(microbatch); }

  /// Other ranks have other layers.
  bool is_cut() const { return cut_.stages > 1; }
  /// Pieces of each sequence that this rank computes.
  std::size_t own_pieces() const { return static_cast<std::size_t>(options_.session.training.own_pieces()); }
  bool is_on_host() const { return device_.kind() != gpu::DeviceKind::cuda; }
  core::Result<void> make_stage();
  core::Result<void> open_experts();
  core::Result<void> run_all_chunks(const StagePass& pass);
  core::Result<void> play_passes();
  core::Result<void> begin_pass(const core::PipelinePass& pass);
  core::Result<void> forward(const core::PipelinePass& pass, PassSlots slots);
  core::Result<void> backward(const core::PipelinePass& pass, int slot);
  StepHooks reading();
  StepHooks adding(const core::PipelinePass& done, int slot);
  core::Result<void> take_losses_before(int microbatch);
  core::Result<void> before_use(std::size_t place);
  core::Result<gpu::ConstBufferView> parameter_memory(std::size_t place);
  core::Result<void> refresh_copies();
  core::Result<void> settle();
  /// Passes this many of each piece's rows through this stage's chunks, forward only.
  core::Result<void> pass_through(const std::function<core::Result<void>(int chunk)>& compute,
                                  std::size_t own_rows);
  /// Whole parameters one after another in the order of the whole table: rank 0 receives what the other
  /// stages of its pipeline hand over.
  core::Result<std::span<const std::byte>> take_parameter(std::size_t place);
  core::Result<std::span<const std::byte>> whole_parameter(std::size_t place);
  core::Result<std::span<const std::byte>> values_on_device(std::size_t place);
  core::Result<void> hand_over(std::span<const std::byte> values);
  core::Result<void> broadcast(std::span<std::byte> bytes, int stage);
  bool begins(int chunk) const { return cut_.parts[static_cast<std::size_t>(chunk)].has_begin(); }
  bool ends(int chunk) const { return cut_.parts[static_cast<std::size_t>(chunk)].has_end(options_.model); }
  /// The stage that has a parameter of the whole table.
  int stage_of(std::size_t place) const;
  StagePass pass(const StepHooks& hooks) const { return {readable_, gradients_, hooks}; }

  const TrainerOptions options_;
  const PipelinePlace place_;
  const StageCut cut_;
  core::PipelineSchedule schedule_;  ///< of a rank that has all layers, only the number of microbatches
  gpu::Device& device_;
  std::unique_ptr<TensorRank> share_;
  std::unique_ptr<ContextRank> context_;  ///< null: sequences are whole
  std::unique_ptr<TrainableStage> model_;
  StageParameters parameters_;
  ModelConfig all_model_;  ///< as on a rank that has all experts; also its table and this stage's
  ParameterTable all_table_;
  StageParameters all_parameters_;
  std::optional<StageRunner> runner_;  ///< created by open() in a pipeline
  StageMemory memory_;
  std::vector<core::PipelinePass> all_passes_;  ///< of this stage, including rounds without a lane
  std::optional<std::size_t> begun_;            ///< how many of these have begun

  actors::Session* session_ = nullptr;
  const Corpus* corpus_ = nullptr;
  actors::TrainerGroup* stages_ = nullptr;  ///< the ranks of this pipeline, in order, if there are others
  std::optional<SessionLinks> links_;
  std::optional<StageLanes> lanes_;
  StepAverage average_;
  std::unique_ptr<EmbeddingOwner>
      owner_;  ///< on the first stage, and the copy on the last, for tied embeddings
  std::unique_ptr<EmbeddingCopy> copy_;
  std::optional<RouteLosses> route_losses_;  ///< for models with experts on the host
  std::unique_ptr<SessionPeers> peers_;      ///< null: all experts of the stage are here
  ExpertTally tally_;
  core::Result<void> kept_;            ///< the first failure of the copy's gradients
  int losses_taken_ = 0;               ///< in the order of microbatches
  std::optional<core::Step> copy_of_;  ///< the step before which the copy was taken
  /// For the last step's passes, in nanoseconds of the device's clock.
  std::vector<std::int64_t> began_, ended_;
  core::List<int, Batch> batches_;          ///< per slot
  std::vector<const std::byte*> readable_;  ///< by place in the whole table
  std::vector<float*> gradients_;           ///< the same for each own piece, one after another
  std::vector<float> answer_;               ///< logits
  std::vector<std::byte> read_;             ///< a parameter from another stage, or from the device
  std::vector<float> wide_;                 ///< as above, in f32
  std::optional<std::size_t> taken_;        ///< the parameter whose values `whole_` has
  std::span<const std::byte> whole_;
};

/// The model's parameters as a session registers them, in the order of forward, with the training's groups.
/// Matrices of layers, except routers, are gathered in `gather_dtype`, if there is one.
std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training,
                                                    std::optional<core::DType> gather_dtype = {});
/// Those of all layers, as parts of the whole if a rank has a share of each.
std::vector<core::ParameterSpec> session_parameters(const SharedTable& table, const TrainerOptions& options);

}  // namespace troupe::apps::gpt
