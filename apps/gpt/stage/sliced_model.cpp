#include "apps/gpt/stage/sliced_model.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "apps/gpt/model/sequence_part.hpp"
#include "apps/gpt/stage/context_stage.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "apps/gpt/stage/uncut_model.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// In the tree of core/plan/lanes.hpp: neighbours first; a term without a neighbour passes through.
std::vector<float> tree_sum(std::vector<std::vector<float>> terms) {
  for (std::size_t apart = 1; apart < terms.size(); apart *= 2) {
    for (std::size_t left = 0; left + apart < terms.size(); left += 2 * apart) {
      for (std::size_t i = 0; i < terms[left].size(); ++i) terms[left][i] += terms[left + apart][i];
    }
  }
  return std::move(terms.front());
}

/// A whole model with this share of the layers, and if a group shares the sequences, with a part of each.
Result<std::unique_ptr<TrainableModel>> create_slice(const ModelConfig& config, BatchShape shape, Keep keep,
                                                     const TensorShare& share, StageGroups groups) {
  if (groups.sequences == nullptr) return create_host_model(config, shape, keep, share, groups.layers);
  const SequenceMember member = member_of(groups.sequences);
  const StageShape part{.batch = TRY(SequencePart::shape_of(shape, member.members)),
                        .keep = keep,
                        .share = share,
                        .context_parallel = member.members};
  auto stage = TRY(create_host_stage(config, uncut(config), part, groups));
  const auto sum = [group = groups.sequences](std::span<float> values) { return group->sum(values); };
  return std::make_unique<UncutModel>(config, shape,
                                      std::make_unique<ContextStage>(shape, 1, member, sum, std::move(stage)),
                                      host_stage_bytes(config, uncut(config), part));
}

}  // namespace

Result<std::unique_ptr<SlicedModel>> SlicedModel::create(const ModelConfig& config, BatchShape shape,
                                                         Keep keep, const TensorShare& share, int lanes,
                                                         TensorGroup<float>* context) {
  std::unique_ptr<SlicedModel> sliced(new SlicedModel);
  sliced->room_ = std::make_unique<SliceGroup<float>::Room>(share.size);
  sliced->context_ = context;
  sliced->step_lanes_ = static_cast<std::size_t>(lanes);
  sliced->shared_.emplace(config, share);
  if (context != nullptr) sliced->across_ = std::make_unique<GroupRelay<float>>(*context, share.size);
  for (std::size_t i = 0; i < share.size; ++i) {
    Slice slice;
    slice.group = std::make_unique<SliceGroup<float>>(*sliced->room_, i);
    auto* across = context == nullptr ? nullptr : &sliced->across_->member(i);
    slice.model =
        TRY(create_slice(config, shape, keep, {share.size, i, share.sequence}, {slice.group.get(), across}));
    for (const ParameterSpec& spec : slice.model->table().specs) {
      slice.parameters.emplace_back(spec.elements());
      slice.gradients.emplace_back(spec.elements());
      slice.readable.push_back(reinterpret_cast<const std::byte*>(slice.parameters.back().data()));
      slice.places.push_back(slice.gradients.back().data());
    }
    slice.lanes.resize(slice.places.size());
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
  own.loss_rows = hooks.loss_rows;
  own.router_factor = hooks.router_factor;
  own.last_microbatch = hooks.last_microbatch;
  TRY(together([&](Slice& slice) {
    return slice.model->forward_backward(slice.readable, slice.places, tokens, targets, own);
  }));
  return hooks.last_microbatch ? give_gradients(gradients, hooks) : Result<void>{};
}

Result<void> SlicedModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                       const StepHooks& hooks) {
  TRY(copy_parameters(parameters, hooks));
  StepHooks own;
  own.loss_rows = hooks.loss_rows;
  return together(
      [&](Slice& slice) { return slice.model->forward_loss(slice.readable, tokens, targets, own); });
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

Result<std::span<const float>> SlicedModel::logits(Parameters parameters, Tokens tokens,
                                                   const StepHooks& hooks) {
  TRY(copy_parameters(parameters, hooks));
  const StepHooks own;
  std::span<const float> first;
  TRY(together([&](Slice& slice) -> Result<void> {
    const auto found = TRY(slice.model->logits(slice.readable, tokens, own));
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
      const auto layout = shared_->layout(p, slice.group->index());
      copy_to_part(layout, whole, slice.parameters[p].data());
    }
  }
  return {};
}

// In the order of backward. For parameters that all slices keep whole, each slice has the whole gradient.
Result<void> SlicedModel::give_gradients(Gradients gradients, const StepHooks& hooks) {
  std::vector<float> whole;
  for (std::size_t p = gradients.size(); p-- > 0;) {
    if (hooks.before_use) TRY(hooks.before_use(p));
    whole.assign(table().specs[p].elements(), 0.0F);
    const bool is_summed = shared_->at(p).also_sum;
    if (is_summed) whole = TRY(next_sum(p));
    for (Slice& slice : slices_) {
      if (is_summed) break;
      copy_from_part(shared_->layout(p, slice.group->index()), slice.gradients[p].data(), whole.data());
      std::fill(slice.gradients[p].begin(), slice.gradients[p].end(), 0.0F);
    }
    for (std::size_t i = 0; i < whole.size(); ++i) gradients[p][i] += whole[i];
    if (hooks.gradient_ready) hooks.gradient_ready(p);
  }
  return {};
}

Result<std::vector<float>> SlicedModel::next_sum(std::size_t parameter) {
  const std::size_t elements = table().specs[parameter].elements();
  for (Slice& slice : slices_) {
    auto& gradient = slice.gradients[parameter];
    slice.lanes[parameter].push_back(gradient);  // passes write to its memory
    std::fill(gradient.begin(), gradient.end(), 0.0F);
  }
  std::vector<float> total(elements);
  if (slices_.front().lanes[parameter].size() < step_lanes_) return total;
  const std::size_t pieces = context_ != nullptr ? context_->size() : 1;
  for (Slice& slice : slices_) {
    const auto own = tree_sum(std::exchange(slice.lanes[parameter], {}));
    std::vector<float> all = own;
    if (context_ != nullptr) {
      all.resize(pieces * elements);
      TRY(context_->gather(own, all, TensorGroup<float>::Counts(pieces, elements)));
    }
    std::vector<std::vector<float>> of_pieces;
    for (auto piece = all.begin(); piece != all.end(); piece += static_cast<std::ptrdiff_t>(elements))
      of_pieces.emplace_back(piece, piece + static_cast<std::ptrdiff_t>(elements));
    const auto sum = tree_sum(std::move(of_pieces));
    for (std::size_t i = 0; i < elements; ++i)
      total[i] = &slice == &slices_.front() ? sum[i] : total[i] + sum[i];
  }
  if (context_ != nullptr && context_->index() > 0) total.assign(elements, 0.0F);
  return total;
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
