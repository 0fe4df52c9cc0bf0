#include "apps/gpt/pipeline/tied_embedding.hpp"

#include <algorithm>

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

EmbeddingOwner::EmbeddingOwner(TrainerGroup& stages, GiveGradients when, std::size_t elements)
    : stages_(stages), when_(when), received_(elements) {}

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

Result<void> EmbeddingOwner::add_gradient(int microbatch, std::span<float> gradient) {
  const bool is_last = microbatch + 1 == microbatches_;
  if (when_ == GiveGradients::each_step && !is_last) return {};
  TRY(wait_for(stages_, receiving_));
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += received_[i];
  return is_last ? Result<void>{} : post_receive();
}

Result<void> EmbeddingOwner::settle() {
  return wait_for(stages_, giving_);
}

EmbeddingCopy::EmbeddingCopy(TrainerGroup& stages, GiveGradients when, std::size_t elements)
    : stages_(stages), when_(when), values_(elements) {
  const int parts = when == GiveGradients::each_microbatch ? stages.size() : 1;
  for (int i = 0; i < parts; ++i) parts_.push_back({std::vector<float>(elements), {}});
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
  Part& own = part(microbatch);
  TRY(wait_for(stages_, own.giving));
  if (when_ == GiveGradients::each_microbatch || microbatch == 0)
    std::fill(own.values.begin(), own.values.end(), 0.0F);
  return own.values.data();
}

Result<void> EmbeddingCopy::give_gradient(int microbatch) {
  if (when_ == GiveGradients::each_step && microbatch + 1 != microbatches_) return {};
  Part& own = part(microbatch);
  own.giving = TRY(stages_.send(gpu::view_of(std::span<const float>(own.values)), DType::f32, 0));
  return {};
}

Result<void> EmbeddingCopy::settle() {
  TRY(wait_for(stages_, taking_));
  for (Part& own : parts_) TRY(wait_for(stages_, own.giving));
  return {};
}

}  // namespace troupe::apps::gpt
