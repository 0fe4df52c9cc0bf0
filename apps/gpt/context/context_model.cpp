#include "apps/gpt/context/context_model.hpp"

#include <algorithm>

#include "apps/gpt/context/context_attention.hpp"
#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<BatchShape> own_shape(BatchShape shape, const TensorGroup<float>& group) {
  if (shape.length % (2 * group.size()) == 0) return BatchShape{shape.batch, shape.length / group.size()};
  return core::fail(core::Errc::invalid_argument,
                    "context parallelism cuts a sequence in two pieces per rank, found {} tokens for {} "
                    "ranks; choose a context that is a multiple of {}",
                    shape.length, group.size(), 2 * group.size());
}

ContextModel::ContextModel(BatchShape shape, TensorGroup<float>& group, std::unique_ptr<RowModel> model)
    : shape_(shape),
      group_(group),
      positions_(positions_of_member(shape.length, group.size(), group.index())),
      model_(std::move(model)),
      logits_(model_->config().vocabulary) {}

std::vector<std::int32_t> ContextModel::own(Tokens tokens) const {
  std::vector<std::int32_t> found;
  for (std::size_t b = 0; b < tokens.size() / shape_.length; ++b) {
    for (const std::size_t position : positions_) found.push_back(tokens[b * shape_.length + position]);
  }
  return found;
}

double ContextModel::weight(Tokens targets) const {
  const auto all = std::max<std::size_t>(learned_rows(targets), 1);
  return static_cast<double>(learned_rows(own(targets))) / static_cast<double>(all);
}

Result<void> ContextModel::forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                            Tokens targets, const StepHooks& hooks) {
  CHECK(tokens.size() == shape_.rows() && targets.size() == shape_.rows(),
        "tokens and targets are of whole sequences");
  const double share = weight(targets);
  StepHooks own_hooks = hooks;
  own_hooks.loss_scale = hooks.loss_scale * share;
  TRY(model_->forward_backward(parameters, gradients, own(tokens), own(targets), own_hooks));
  losses_.push_back(TRY(model_->take_losses()).front() * share);
  return {};
}

Result<void> ContextModel::forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                        const StepHooks& hooks) {
  TRY(model_->forward_loss(parameters, own(tokens), own(targets), hooks));
  auto loss = static_cast<float>(TRY(model_->take_losses()).front() * weight(targets));
  TRY(group_.sum({&loss, 1}));
  losses_.push_back(loss);
  return {};
}

// A sequence of any length is filled up behind its end, which nothing before it sees. One member has the last
// token's row; the others add zeros.
Result<std::span<const float>> ContextModel::logits(Parameters parameters, Tokens tokens,
                                                    const StepHooks& hooks) {
  CHECK(!tokens.empty() && tokens.size() <= shape_.length, "logits() takes one sequence of 1..T tokens");
  std::vector<std::int32_t> filled(tokens.begin(), tokens.end());
  filled.resize(shape_.length, 0);
  const auto row = std::find(positions_.begin(), positions_.end(), tokens.size() - 1);
  const bool has_row = row != positions_.end();
  const auto place = has_row ? static_cast<std::size_t>(row - positions_.begin()) : 0;
  const auto found = TRY(model_->logits_of(parameters, own(filled), place, hooks));
  std::fill(logits_.begin(), logits_.end(), 0.0F);
  if (has_row) std::copy(found.begin(), found.end(), logits_.begin());
  TRY(group_.sum(logits_));
  return std::span<const float>(logits_);
}

}  // namespace troupe::apps::gpt
