#include "apps/gpt/rank/tied_embedding.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using actors::TrainerGroup;
using core::Result;

namespace {

Result<void> wait_for(TrainerGroup& group, std::optional<TrainerGroup::Posted>& posted) {
  if (!posted) return {};
  TRY(group.wait(*posted));
  posted.reset();
  return {};
}

}  // namespace

Result<std::unique_ptr<EmbeddingOwner>> EmbeddingOwner::create(TrainerGroup& stages,
                                                               const StageMemory& memory, HeadGradient how,
                                                               HeadShape shape) {
  std::unique_ptr<EmbeddingOwner> owner(new EmbeddingOwner(stages, memory, how, shape));
  owner->received_ = TRY(memory.allocate(shape.message_bytes(how)));
  return owner;
}

Result<void> EmbeddingOwner::give_values(gpu::ConstBufferView values) {
  giving_ = TRY(stages_.send(values, shape_.dtype, stages_.size() - 1));
  return {};
}

Result<void> EmbeddingOwner::take() {
  receiving_ = TRY(stages_.receive(received_.view(), shape_.message_dtype(how_), stages_.size() - 1));
  return {};
}

Result<void> EmbeddingOwner::add_gradient(int microbatch, TrainableStage& stage,
                                          std::span<float* const> gradients) {
  if (how_ == HeadGradient::sum && microbatch + 1 != microbatches_) return {};
  TRY(wait_for(stages_, receiving_));
  const auto received = received_.view();
  if (how_ == HeadGradient::sum) {
    memory_.add(received, {reinterpret_cast<std::byte*>(gradients.front()), received.bytes});
    return {};
  }
  const std::size_t logits = shape_.rows * shape_.vocabulary * core::size_of(shape_.dtype);
  const std::size_t bytes = received.bytes / shape_.pieces;
  for (std::size_t piece = 0; piece < shape_.pieces; ++piece) {
    const auto own = received.subview(piece * bytes, bytes);
    stage.add_head_gradient({own.subview(0, logits), own.subview(logits, bytes - logits)}, gradients[piece]);
  }
  return {};
}

Result<void> EmbeddingOwner::settle() {
  return wait_for(stages_, giving_);
}

Result<std::unique_ptr<EmbeddingCopy>> EmbeddingCopy::create(TrainerGroup& stages, const StageMemory& memory,
                                                             HeadGradient how, HeadShape shape) {
  std::unique_ptr<EmbeddingCopy> copy(new EmbeddingCopy(stages, memory, how, shape));
  copy->values_ = TRY(memory.allocate(shape.value_bytes()));
  const int parts = how == HeadGradient::factors ? stages.size() : 1;
  for (int i = 0; i < parts; ++i)
    copy->parts_.push_back({TRY(memory.allocate(shape.message_bytes(how))), {}});
  return copy;
}

Result<void> EmbeddingCopy::take_values() {
  taking_ = TRY(stages_.receive(values_.view(), shape_.dtype, 0));
  return {};
}

Result<const std::byte*> EmbeddingCopy::copied() {
  TRY(wait_for(stages_, taking_));
  return values_.view().data;
}

Result<float*> EmbeddingCopy::gradient(int microbatch) {
  if (how_ == HeadGradient::factors) return nullptr;
  Part& own = part(microbatch);
  TRY(wait_for(stages_, own.giving));
  if (microbatch == 0) memory_.zero(own.values.view());
  return own.values.view().as<float>().data();
}

Result<void> EmbeddingCopy::keep(int microbatch, std::span<const HeadFactors> factors) {
  if (how_ == HeadGradient::sum) return {};
  Part& own = part(microbatch);
  TRY(wait_for(stages_, own.giving));
  const auto values = own.values.view();
  std::size_t next = 0;
  for (const auto& [logits, normed] : factors) {
    for (const auto part : {logits, normed}) {
      memory_.copy(part, values.subview(next, part.bytes));
      next += part.bytes;
    }
  }
  return {};
}

Result<void> EmbeddingCopy::give(int microbatch) {
  Part& own = part(microbatch);
  own.giving = TRY(stages_.send(own.values.view(), shape_.message_dtype(how_), 0));
  return {};
}

Result<void> EmbeddingCopy::settle() {
  TRY(wait_for(stages_, taking_));
  for (Part& own : parts_) TRY(wait_for(stages_, own.giving));
  return {};
}

}  // namespace troupe::apps::gpt
