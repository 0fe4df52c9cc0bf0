#include "apps/gpt/pipeline/tied_embedding.hpp"

#include <algorithm>

#include "apps/gpt/layers/matmul.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using actors::TrainerGroup;
using core::DType;
using core::Result;

namespace {

Result<void> wait_for(TrainerGroup& group, std::optional<TrainerGroup::Posted>& posted) {
  if (!posted) return {};
  TRY(group.wait(*posted));
  posted.reset();
  return {};
}

}  // namespace

EmbeddingOwner::EmbeddingOwner(TrainerGroup& stages, HeadGradient how, HeadShape shape)
    : stages_(stages), how_(how), shape_(shape), received_(shape.message(how)) {}

Result<void> EmbeddingOwner::give_values(std::span<const float> values) {
  giving_ = TRY(stages_.send(gpu::view_of(values), DType::f32, stages_.size() - 1));
  return {};
}

Result<void> EmbeddingOwner::begin_step(int microbatches) {
  microbatches_ = microbatches;
  return microbatches > 0 ? post_receive() : Result<void>{};
}

Result<void> EmbeddingOwner::post_receive() {
  receiving_ = TRY(stages_.receive(gpu::view_of(std::span(received_)), DType::f32, stages_.size() - 1));
  return {};
}

Result<void> EmbeddingOwner::add_gradient(int microbatch, float* gradient) {
  const bool is_last = microbatch + 1 == microbatches_;
  if (how_ == HeadGradient::sum && !is_last) return {};
  TRY(wait_for(stages_, receiving_));
  const auto [N, C, V] = shape_;
  if (how_ == HeadGradient::factors) {
    linear_backward_weight({N, C, V}, received_.data(), received_.data() + N * V, gradient);
  } else {
    for (std::size_t i = 0; i < V * C; ++i) gradient[i] += received_[i];
  }
  return is_last ? Result<void>{} : post_receive();
}

Result<void> EmbeddingOwner::settle() {
  return wait_for(stages_, giving_);
}

EmbeddingCopy::EmbeddingCopy(TrainerGroup& stages, HeadGradient how, HeadShape shape)
    : stages_(stages), how_(how), shape_(shape), values_(shape.elements()) {
  const int parts = how == HeadGradient::factors ? stages.size() : 1;
  for (int i = 0; i < parts; ++i) parts_.push_back({std::vector<float>(shape.message(how)), {}});
}

Result<void> EmbeddingCopy::take_values() {
  taking_ = TRY(stages_.receive(gpu::view_of(std::span(values_)), DType::f32, 0));
  return {};
}

Result<const float*> EmbeddingCopy::copied() {
  TRY(wait_for(stages_, taking_));
  return values_.data();
}

void EmbeddingCopy::begin_step(int microbatches) {
  microbatches_ = microbatches;
}

Result<float*> EmbeddingCopy::gradient(int microbatch) {
  if (how_ == HeadGradient::factors) return nullptr;
  Part& own = part(microbatch);
  TRY(wait_for(stages_, own.giving));
  if (microbatch == 0) std::fill(own.values.begin(), own.values.end(), 0.0F);
  return own.values.data();
}

Result<void> EmbeddingCopy::give_gradient(int microbatch, const HeadFactors& factors) {
  if (how_ == HeadGradient::sum && microbatch + 1 != microbatches_) return {};
  Part& own = part(microbatch);
  if (how_ == HeadGradient::factors) {
    TRY(wait_for(stages_, own.giving));
    const auto end = std::copy(factors.logits.begin(), factors.logits.end(), own.values.begin());
    std::copy(factors.normed.begin(), factors.normed.end(), end);
  }
  own.giving = TRY(stages_.send(gpu::view_of(std::span<const float>(own.values)), DType::f32, 0));
  return {};
}

Result<void> EmbeddingCopy::settle() {
  TRY(wait_for(stages_, taking_));
  for (Part& own : parts_) TRY(wait_for(stages_, own.giving));
  return {};
}

}  // namespace troupe::apps::gpt
