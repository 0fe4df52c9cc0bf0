#include "apps/gpt/stage/context_stage.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

ContextStage::ContextStage(BatchShape shape, int slots, const SequenceMember& member, MembersSum sum,
                           std::unique_ptr<TrainableStage> stage)
    : part_(shape, member),
      members_(member.members),
      sum_(std::move(sum)),
      stage_(std::move(stage)),
      own_(static_cast<std::size_t>(slots)) {}

std::size_t ContextStage::own_rows_of(std::size_t) const {
  return stage_->own_rows_of(part_.whole().length / members_);  // padded to the longest
}

Result<void> ContextStage::forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) {
  OwnText& own = of(slots.activations);
  own = {part_.own(text.tokens), part_.own(text.targets),
         pass.hooks.loss_rows ? 1 : part_.weight(text.targets)};
  return stage_->forward(chunk, slots, pass, own.text());
}

Result<void> ContextStage::loss(int chunk, int slot, const StagePass& pass, StageText) {
  weights_.push_back(of(slot).weight);
  return stage_->loss(chunk, slot, pass, of(slot).text());
}

Result<std::vector<StageLoss>> ContextStage::take_losses(std::size_t count) {
  auto losses = TRY(stage_->take_losses(count));
  for (StageLoss& loss : losses) {
    loss.words *= weights_.front();
    weights_.pop_front();
  }
  return losses;
}

Result<void> ContextStage::backward(int chunk, int slot, const StagePass& pass, StageText) {
  StepHooks hooks = pass.hooks;
  hooks.router_scale = pass.hooks.loss_scale;
  hooks.loss_scale *= of(slot).weight;
  return stage_->backward(chunk, slot, {pass.parameters, pass.gradients, hooks}, of(slot).text());
}

Result<void> ContextStage::backward_weight(int slot, const StagePass& pass) {
  return stage_->backward_weight(slot, pass);
}

Result<void> ContextStage::forward_sequence(int chunk, const StagePass& pass,
                                            std::span<const std::int32_t> tokens) {
  OwnText& own = of(0);
  own.tokens = part_.own_of_one(tokens);
  StepHooks hooks = pass.hooks;
  hooks.length = tokens.size();
  return stage_->forward_sequence(chunk, {pass.parameters, pass.gradients, hooks}, own.tokens);
}

Result<std::span<const float>> ContextStage::logits_of(int chunk, std::size_t token, const StagePass& pass) {
  const auto place = part_.place_of(token);
  const auto found = TRY(stage_->logits_of(chunk, place.value_or(0), pass));
  logits_.assign(found.size(), 0);
  if (place) std::copy(found.begin(), found.end(), logits_.begin());
  TRY(sum_(logits_));
  return std::span<const float>(logits_);
}

}  // namespace troupe::apps::gpt
