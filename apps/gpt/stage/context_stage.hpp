#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/model/sequence_part.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// Replaces values in host memory by their sums over all members; all members call it.
using MembersSum = std::function<core::Result<void>(std::span<float>)>;

/// A pipeline stage on one member of a context-parallel group: text holds
/// whole sequences, and the stage computes a part of each. Every call is made by all members with the same
/// text. Gradients and losses are its own rows' contribution to those of the microbatch, which are the sum
/// over the members; logits are the same on all members.
class ContextStage final : public TrainableStage {
 public:
  /// `stage` has slots for `slots` microbatches of a part of `shape`. `sum` is not called before the first
  /// pass.
  ContextStage(BatchShape shape, int slots, const SequenceMember& member, MembersSum sum,
               std::unique_ptr<TrainableStage> stage);

  const ParameterTable& table() const override { return stage_->table(); }
  core::DType dtype() const override { return stage_->dtype(); }
  std::size_t own_rows() const override { return stage_->own_rows(); }
  std::size_t own_rows_of(std::size_t length) const override;

  StageRows input(int slot) override { return stage_->input(slot); }
  StageRows output(int chunk, int slot) override { return stage_->output(chunk, slot); }
  StageRows gradient(int slot) override { return stage_->gradient(slot); }

  core::Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override;
  core::Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<std::vector<StageLoss>> take_losses(std::size_t count) override;
  core::Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<void> backward_weight(int slot, const StagePass& pass) override;

  std::vector<HeadFactors> head_factors(int chunk, int slot) override {
    return stage_->head_factors(chunk, slot);
  }
  void add_head_gradient(const HeadFactors& factors, float* gradient) override {
    stage_->add_head_gradient(factors, gradient);
  }
  std::span<const ExpertRoutes> routes(int chunk, int slot, std::size_t piece) override {
    return stage_->routes(chunk, slot, piece);
  }

  core::Result<void> forward_sequence(int chunk, const StagePass& pass,
                                      std::span<const std::int32_t> tokens) override;
  core::Result<std::span<const float>> logits_of(int chunk, std::size_t token,
                                                 const StagePass& pass) override;

 private:
  /// This rank's part of the microbatch in a slot.
  struct OwnText {
    std::vector<std::int32_t> tokens, targets;
    double weight = 1;

    StageText text() const { return {tokens, targets}; }
  };
  OwnText& of(int slot) { return own_[static_cast<std::size_t>(slot)]; }

  SequencePart part_;
  std::size_t members_;
  MembersSum sum_;
  std::unique_ptr<TrainableStage> stage_;
  std::vector<OwnText> own_;    ///< by slot
  std::deque<double> weights_;  ///< of losses that have not been taken yet
  std::vector<float> logits_;
};

}  // namespace troupe::apps::gpt
