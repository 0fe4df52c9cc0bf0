#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/gpt/stage/in_step.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"

namespace troupe::apps::gpt {

/// A stage on a rank that plays several of the members that share each sequence: a stage for each of them, in
/// step. Passes have one gradient pointer per parameter and member, first all of the first member; hooks are
/// called once, when all members have come to them, and peers for one member after another; losses are those
/// of each member, microbatch by microbatch.
class PieceStage final : public TrainableStage {
 public:
  /// There are as many stages as members, which exchange what they share by InStep::meet(). `members` must
  /// outlive it.
  PieceStage(InStep& members, std::vector<std::unique_ptr<TrainableStage>> stages);
  ~PieceStage() override;

  const ParameterTable& table() const override { return stages_.front()->table(); }
  core::DType dtype() const override { return stages_.front()->dtype(); }
  std::size_t own_rows() const override { return stages_.front()->own_rows(); }
  std::size_t own_rows_of(std::size_t length) const override { return stages_.front()->own_rows_of(length); }

  StageRows input(int slot) override;
  StageRows output(int chunk, int slot) override;
  StageRows gradient(int slot) override;

  core::Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) override;
  core::Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<std::vector<StageLoss>> take_losses(std::size_t count) override;
  core::Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) override;
  core::Result<void> backward_weight(int slot, const StagePass& pass) override;

  std::vector<HeadFactors> head_factors(int chunk, int slot) override;
  void add_head_gradient(const HeadFactors& factors, float* gradient) override {
    stages_.front()->add_head_gradient(factors, gradient);
  }
  std::span<const ExpertRoutes> routes(int chunk, int slot, std::size_t piece) override {
    return stages_[piece]->routes(chunk, slot, 0);
  }

  core::Result<void> forward_sequence(int chunk, const StagePass& pass, TokenSpan tokens) override;
  core::Result<std::span<const float>> logits_of(int chunk, std::size_t token,
                                                 const StagePass& pass) override;

 private:
  using Body = std::function<core::Result<void>(TrainableStage& stage, const StagePass& pass)>;
  core::Result<void> run(const StagePass& pass, const Body& body);
  /// A member's: each call comes to the rank's own once all members make it.
  StepHooks hooks_of(std::size_t member, const StepHooks& own);

  class Peers;

  InStep& members_;
  std::vector<std::unique_ptr<TrainableStage>> stages_;
  std::unique_ptr<Peers> peers_;
};

}  // namespace troupe::apps::gpt
