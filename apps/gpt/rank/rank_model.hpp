#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/shell/rank_world.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/rank/pipeline_timeline.hpp"
#include "apps/gpt/text/data.hpp"
#include "core/element_range.hpp"

namespace troupe::apps::gpt {

/// A rank's part of the model, and how it computes with the ranks that have the rest: everything that depends
/// on how the model is shared. Places are those in the whole model's table. Order of calls: prepare(), the
/// session is joined with parameters() and groups(), open(), the initial values are written, warm_up(). Its
/// memory must outlive the session.
class RankModel {
 public:
  virtual ~RankModel() = default;

  /// The parameters whole, and in this rank's share of the layers.
  virtual const SharedTable& table() const = 0;
  /// What the session registers, and the place of each parameter.
  virtual std::vector<core::ParameterSpec> parameters() const = 0;
  virtual std::vector<std::size_t> places() const = 0;
  virtual std::vector<actors::TrainerGroupSpec> groups() const { return {}; }
  /// What the rank does in its rounds, as in SessionOptions::passes.
  virtual std::vector<actors::TrainerPass> passes() const { return {}; }
  /// What it posts in its lanes, as in SessionOptions::operations, as far as that is declared.
  virtual std::vector<core::DeclaredOperation> operations() const { return {}; }
  /// Device memory that it takes besides the session's.
  virtual core::Result<std::size_t> bytes() const = 0;

  /// Allocates host memory, so that what does not fit here does not hold up the other ranks.
  virtual core::Result<void> prepare() = 0;
  /// Both must outlive the model's last call.
  virtual core::Result<void> open(actors::Session& session, const Corpus& corpus) = 0;
  virtual core::Result<void> warm_up() { return {}; }
  /// Releases what computes on the session's stream, because the session is about to end.
  virtual void close() {}

  /// Plays all lanes of a step that has begun.
  virtual core::Result<void> play_lanes() = 0;
  /// Parameters were loaded from elsewhere.
  virtual void forget_copies() {}
  /// Where the tokens went since the last call; empty without experts.
  virtual ExpertTally take_expert_tally() { return {}; }

  /// Whether the following calls need other ranks, in which case all ranks must make them. In an evaluation
  /// of the session.
  virtual bool needs_others() const = 0;
  /// Mean loss over all targets of `batches` microbatches that cover the evaluation text evenly; none if they
  /// have no target.
  virtual core::Result<std::optional<double>> evaluate(std::size_t batches) = 0;
  /// As TrainableModel::logits().
  virtual core::Result<std::span<const float>> logits(TrainableModel::Tokens tokens) = 0;
  /// Hashes all parameters, whole and in order.
  virtual core::Result<std::uint64_t> parameter_hash() = 0;
  /// Elements of a whole parameter. Rank 0 reads them in the order of places, each from the first to the last
  /// element; the others hand theirs over.
  virtual core::Result<void> read_parameter(std::size_t place, core::ElementRange range,
                                            std::span<float> values) = 0;
  virtual core::Result<void> hand_over_parameters() = 0;

  /// That of the last step, if the model is cut into stages; empty before the first.
  virtual core::Result<std::optional<PipelineTimeline>> timeline() {
    return std::optional<PipelineTimeline>{};
  }
};

/// How the options share the model with the other ranks of `world`, which must outlive it.
/// Errc::invalid_argument and Errc::unavailable name what is impossible, alike on all ranks.
core::Result<std::unique_ptr<RankModel>> create_rank_model(actors::RankWorld& world,
                                                           const TrainerOptions& options);

/// The model's parameters as a session registers them, in the order of forward, with the training's groups.
/// Matrices of layers, except routers, are gathered in `gather_dtype`, if there is one.
std::vector<core::ParameterSpec> session_parameters(const ParameterTable& table, core::DType dtype,
                                                    const core::TrainingOptions& training,
                                                    std::optional<core::DType> gather_dtype = {});
/// Those of all layers, as parts of the whole if a rank has a share of each.
std::vector<core::ParameterSpec> session_parameters(const SharedTable& table, const TrainerOptions& options);

}  // namespace troupe::apps::gpt
