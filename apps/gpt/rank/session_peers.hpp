#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "apps/gpt/model/expert_peers.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/gpt/stage/stage_memory.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps::gpt {

/// The layers of experts of a session (Session::experts()). Where passes compute on a stream, rows stay in
/// the device's memory, and wait() holds up the stream alone.
class SessionPeers final : public ExpertPeers {
 public:
  /// `own` is the table of this rank, whose parameters are those of its model or parts of them, and `places`
  /// says where in it each parameter of the session is; none: they are all of it. Passes compute in `memory`.
  /// The session and the memory's device must outlive the peers. Null where every rank has all experts, or
  /// the same parts of them as its layer.
  static core::Result<std::unique_ptr<SessionPeers>> create(actors::Session& session,
                                                            const ModelConfig& config,
                                                            const ParameterTable& own,
                                                            const StageMemory& memory,
                                                            std::vector<std::size_t> places = {});

  /// For passes; null where all experts of this rank's column are here.
  ExpertPeers* passes() { return groups_.experts == nullptr ? nullptr : this; }
  /// Learns where this lane's gradients go.
  core::Result<void> begin_lane();

  core::Result<PlannedRows> plan(std::size_t layer, const core::Dispatch& dispatch) override;
  core::Result<void> begin_exchange(const RowsOfExchange& rows, std::span<const std::byte> input,
                                    std::span<std::byte> output, const core::RowMove& move,
                                    std::size_t row_bytes) override;
  core::Result<void> wait() override;
  void* gradient(std::size_t parameter, std::size_t source) override { return gradients_[parameter][source]; }

  /// The table of a rank that has all experts.
  const ParameterTable& whole_table() const { return whole_.whole(); }
  /// All values of a parameter by its place in the rank's own table; they live until the next call.
  using Read = std::function<core::Result<std::span<const float>>(std::size_t)>;
  /// All values of a parameter by its place in the table of a rank that has all experts; they live until the
  /// next call. In an evaluation, by all ranks that share these experts.
  core::Result<std::span<const float>> whole(std::size_t place, const Read& read);

 private:
  /// The ranks that share experts, and those that share layers, where they have different experts.
  struct Groups {
    actors::TrainerGroup* experts = nullptr;
    actors::TrainerGroup* layer = nullptr;
  };

  SessionPeers(actors::Session& session, const Groups& groups, const ModelConfig& config,
               const ParameterTable& own, const StageMemory& memory, std::vector<std::size_t> places);
  core::Result<void> share(actors::TrainerGroup* group, std::span<float> values, int owner);
  core::Result<void> take_parts(std::size_t place, const std::vector<float>& kept, int owner);
  /// Ranks of a column.
  std::size_t layer_ranks() const;

  actors::Session& session_;
  Groups groups_;
  StageMemory memory_;
  actors::ExpertLayer* moving_ = nullptr;       ///< the layer whose rows moved last
  std::vector<bool> is_expert_;                 ///< each parameter of the table
  std::vector<std::size_t> places_;             ///< in the table, of each of the session
  std::vector<std::vector<float*>> gradients_;  ///< of each, by source; empty for others than experts
  SharedTable whole_;                           ///< all experts, and the first part of each
  core::ExpertSpread spread_;
  std::vector<std::optional<std::size_t>>
      experts_;  ///< of the whole model's parameters, which they belong to
  /// Where in the own table each of the whole model's is, or the expert that has its place in this rank's
  /// column.
  std::vector<std::optional<std::size_t>> kept_;
  std::vector<float> values_;
};

/// What a rank's peers post in a microbatch of `rows` tokens, as SessionOptions::operations: for each layer
/// with experts the counts, then tokens to their experts and back, each for all of its pieces in turn; in
/// backward gradients go the same ways, with the counts of forward. Empty where no experts are distributed.
/// `own` is the table of the rank, `element_bytes` of what passes compute with; rows that come back have a
/// term of each of its `slices`.
std::vector<core::DeclaredOperation> expert_operations(const ModelConfig& config, const ParameterTable& own,
                                                       std::size_t rows, std::size_t element_bytes,
                                                       std::size_t slices = 1);

/// The configuration of a rank of a job, with its place among the ranks that experts are distributed over.
/// `fast` numerics group their products. Errc::invalid_argument for experts that cannot be cut.
core::Result<ModelConfig> model_of_rank(ModelConfig config, const core::TrainingOptions& training,
                                        core::Rank rank);
/// The configuration of a rank that has all experts.
ModelConfig model_of_all(ModelConfig config);

}  // namespace troupe::apps::gpt
