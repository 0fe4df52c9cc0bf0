#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/rank/context_rank.hpp"
#include "apps/gpt/rank/rank_model.hpp"
#include "apps/gpt/rank/session_peers.hpp"
#include "apps/gpt/rank/tensor_rank.hpp"

namespace troupe::apps::gpt {

/// A rank that computes in all layers: whole layers, or its share of them, of sequences or of experts.
class AllLayers final : public RankModel {
 public:
  /// `context` is null if ranks do not share sequences.
  AllLayers(const TrainerOptions& options, gpu::Device& device, std::unique_ptr<TensorRank> share,
            std::unique_ptr<ContextRank> context);

  const SharedTable& table() const override { return share_->table(); }
  std::vector<core::ParameterSpec> parameters() const override {
    return session_parameters(table(), options_);
  }
  std::vector<std::size_t> places() const override;
  std::vector<core::DeclaredOperation> operations() const override;
  core::Result<std::size_t> bytes() const override;
  core::Result<void> prepare() override;
  core::Result<void> open(actors::Session& session, const Corpus& corpus) override;
  core::Result<void> warm_up() override;
  void close() override { model_.reset(); }
  core::Result<void> play_lanes() override;
  void forget_copies() override { gathered_.reset(); }
  ExpertTally take_expert_tally() override { return model_->take_expert_tally(); }

  bool needs_others() const override;
  core::Result<std::optional<double>> evaluate(std::size_t batches) override;
  core::Result<std::span<const float>> logits(TrainableModel::Tokens tokens) override;
  core::Result<std::uint64_t> parameter_hash() override;
  core::Result<void> read_parameter(std::size_t place, core::ElementRange range,
                                    std::span<float> values) override;
  core::Result<void> hand_over_parameters() override;

 private:
  bool is_on_host() const { return device_.kind() != gpu::DeviceKind::cuda; }
  core::Result<std::unique_ptr<TrainableModel>> make_model();
  core::Result<void> run_lane(core::Lane lane, const StepAverage& average);
  /// Waits until a parameter may be read, and remembers where it is.
  core::Result<void> before_use(core::ParameterIndex parameter);
  /// Hooks for a pass between steps.
  StepHooks reading();
  /// All of a parameter that ranks have parts of, in the model's dtype. Valid until the next call.
  core::Result<std::span<const std::byte>> whole_parameter(core::ParameterIndex parameter);
  /// All of a parameter of the whole model, by its place there, if ranks share the experts. As above.
  core::Result<std::span<const std::byte>> whole_of_all(std::size_t place);
  core::Result<gpu::BufferView> on_host(gpu::BufferView values, gpu::Buffer& staging);

  const TrainerOptions options_;
  gpu::Device& device_;
  std::unique_ptr<TensorRank> share_;
  std::unique_ptr<ContextRank> context_;
  Batch batch_;
  actors::Session* session_ = nullptr;
  const Corpus* corpus_ = nullptr;
  gpu::StreamView compute_ = nullptr;  ///< of the session; null if the model computes on the host
  std::unique_ptr<TrainableModel> model_;
  std::vector<const std::byte*> readable_;  ///< for units that are not gathered: where they were last
  std::vector<float*> gradients_;
  std::unique_ptr<SessionPeers> peers_;  ///< null: all experts are here
  std::optional<std::size_t> gathered_;  ///< the place of `whole_`
  std::span<const std::byte> whole_;     ///< of the parameter that was gathered last
  std::vector<float> own_;               ///< what whole_of_all() contributes
  std::vector<std::byte> of_all_;        ///< and what it receives
};

}  // namespace troupe::apps::gpt
