#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "apps/gpt/experts/expert_peers.hpp"
#include "apps/gpt/parameters.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The group "ep" of a session whose tensors the host reaches.
class SessionPeers final : public ExpertPeers {
 public:
  /// `table` is that of this rank, and `places` says where in it each parameter of the session is; none: they
  /// are all of it. The session must outlive the peers. Null where no experts are spread.
  static core::Result<std::unique_ptr<SessionPeers>> create(actors::Session& session,
                                                            const ParameterTable& table,
                                                            std::vector<std::size_t> places = {});

  /// Learns where this lane's gradients go.
  core::Result<void> begin_lane();

  core::Result<std::vector<std::vector<std::int64_t>>> gather_counts(
      const std::vector<std::int64_t>& own) override;
  core::Result<void> begin_exchange(std::span<const std::byte> input, const Counts& sent,
                                    std::span<std::byte> output, const Counts& taken) override;
  core::Result<void> wait() override { return group_.wait(exchange_); }
  void* gradient(std::size_t parameter, std::size_t source) override { return gradients_[parameter][source]; }

  using Visit = std::function<void(std::span<const float>)>;
  /// Calls `visit` with all values of each parameter of the whole model, in the order of the table that a
  /// rank alone has. In an evaluation, by all ranks alike.
  core::Result<void> visit_all(const ModelConfig& config, const Visit& visit);
  /// Those of `places` of that table, which are this stage's, of a model that is cut into stages.
  core::Result<void> visit(const ModelConfig& config, std::span<const std::size_t> places,
                           const Visit& visit);

 private:
  SessionPeers(actors::Session& session, actors::TrainerGroup& group, std::vector<bool> is_expert,
               std::vector<std::size_t> places)
      : session_(session), group_(group), is_expert_(std::move(is_expert)), places_(std::move(places)) {}

  actors::Session& session_;
  actors::TrainerGroup& group_;
  actors::TrainerGroup::Posted exchange_{};     ///< the last one
  std::vector<bool> is_expert_;                 ///< each parameter of the table
  std::vector<std::size_t> places_;             ///< in the table, of each of the session
  std::vector<std::vector<float*>> gradients_;  ///< of each, by source; empty for others than experts
};

/// The configuration of a rank of a job, with its place among the ranks that share experts. `fast` numerics
/// group their products.
ModelConfig model_of_rank(ModelConfig config, const core::TrainingOptions& training, core::Rank rank);
/// That of a rank alone.
ModelConfig with_all_experts(ModelConfig config);

}  // namespace troupe::apps::gpt
