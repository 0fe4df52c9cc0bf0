#include "apps/gpt/tensor/sliced_model.hpp"

#include <algorithm>
#include <thread>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<std::unique_ptr<SlicedModel>> SlicedModel::create(const ModelConfig& config, BatchShape shape,
                                                         Keep keep, const TensorShare& share,
                                                         TensorGroup<float>* context) {
  std::unique_ptr<SlicedModel> sliced(new SlicedModel);
  sliced->room_ = std::make_unique<SliceGroup<float>::Room>(share.size);
  if (context != nullptr) sliced->across_ = std::make_unique<GroupRelay<float>>(*context, share.size);
  for (std::size_t i = 0; i < share.size; ++i) {
    Slice slice;
    slice.group = std::make_unique<SliceGroup<float>>(*sliced->room_, i);
    auto* across = context == nullptr ? nullptr : &sliced->across_->member(i);
    slice.model =
        TRY(TensorModel::create(config, shape, keep, {share.size, i, share.sequence}, *slice.group, across));
    for (const ParameterSpec& spec : slice.model->table().specs) {
      slice.parameters.emplace_back(spec.elements());
      slice.gradients.emplace_back(spec.elements());
      slice.readable.push_back(reinterpret_cast<const std::byte*>(slice.parameters.back().data()));
      slice.places.push_back(slice.gradients.back().data());
    }
    sliced->slices_.push_back(std::move(slice));
  }
  return sliced;
}

std::size_t SlicedModel::activation_bytes() const {
  std::size_t bytes = 0;
  for (const Slice& slice : slices_) bytes += slice.model->activation_bytes();
  return bytes;
}

Result<void> SlicedModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                           Tokens targets, const StepHooks& hooks) {
  TRY(copy_parameters(parameters, hooks));
  if (hooks.begin_backward) TRY(hooks.begin_backward());
  StepHooks own;
  own.loss_scale = hooks.loss_scale;
  own.last_microbatch = hooks.last_microbatch;
  TRY(together([&](Slice& slice) {
    return slice.model->forward_backward(slice.readable, slice.places, tokens, targets, own);
  }));
  return hooks.last_microbatch ? give_gradients(gradients, hooks) : Result<void>{};
}

Result<void> SlicedModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                       const StepHooks& hooks) {
  TRY(copy_parameters(parameters, hooks));
  return together(
      [&](Slice& slice) { return slice.model->forward_loss(slice.readable, tokens, targets, StepHooks{}); });
}

Result<std::vector<double>> SlicedModel::take_losses() {
  auto losses = TRY(slices_.front().model->take_losses());
  for (std::size_t i = 1; i < slices_.size(); ++i) TRY(slices_[i].model->take_losses());
  return losses;
}

// All slices see the same tokens.
ExpertTally SlicedModel::take_expert_tally() {
  for (std::size_t i = 1; i < slices_.size(); ++i) slices_[i].model->take_expert_tally();
  return slices_.front().model->take_expert_tally();
}

Result<std::span<const float>> SlicedModel::logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                                      const StepHooks& hooks) {
  TRY(copy_parameters(parameters, hooks));
  std::span<const float> first;
  TRY(together([&](Slice& slice) -> Result<void> {
    const auto found = TRY(slice.model->logits_of(slice.readable, tokens, row, StepHooks{}));
    if (slice.group->index() == 0) first = found;
    return {};
  }));
  return first;
}

Result<void> SlicedModel::copy_parameters(Parameters parameters, const StepHooks& hooks) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (hooks.before_use) TRY(hooks.before_use(p));
    const auto* whole = reinterpret_cast<const float*>(parameters[p]);
    for (Slice& slice : slices_) {
      const auto layout = slice.model->shared().layout(p, slice.group->index());
      copy_to_part(layout, whole, slice.parameters[p].data());
    }
  }
  return {};
}

// In the order of backward. Of what all slices keep whole, each has the whole gradient.
Result<void> SlicedModel::give_gradients(Gradients gradients, const StepHooks& hooks) {
  std::vector<float> whole;
  for (std::size_t p = gradients.size(); p-- > 0;) {
    if (hooks.before_use) TRY(hooks.before_use(p));
    whole.assign(table().specs[p].elements(), 0.0F);
    for (Slice& slice : slices_) {
      copy_from_part(slice.model->shared().layout(p, slice.group->index()), slice.gradients[p].data(),
                     whole.data());
      std::fill(slice.gradients[p].begin(), slice.gradients[p].end(), 0.0F);
    }
    for (std::size_t i = 0; i < whole.size(); ++i) gradients[p][i] += whole[i];
    if (hooks.gradient_ready) hooks.gradient_ready(p);
  }
  return {};
}

Result<void> SlicedModel::together(const std::function<Result<void>(Slice&)>& pass) {
  std::vector<Result<void>> ends(slices_.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      threads.emplace_back([&, i] {
        ends[i] = pass(slices_[i]);
        if (across_) across_->leave();
      });
    }
    if (across_) across_->serve();
  }
  for (const auto& end : ends) TRY(end);
  return {};
}

}  // namespace troupe::apps::gpt
