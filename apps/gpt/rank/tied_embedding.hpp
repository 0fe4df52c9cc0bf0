#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/stage/stage_memory.hpp"
#include "apps/gpt/stage/trainable_stage.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a microbatch, C width, V vocabulary, or the rank's part of it if ranks share layers.

// A tied embedding is a parameter of the first stage alone: its state, its update and its part in norms exist
// only there. The last stage has a copy of the values, which it receives once per step, and sends its part of
// the gradient to the first stage, which adds it where one rank would.

/// How the output layer's part of the gradient, (V, C), reaches the first stage.
enum class HeadGradient : std::uint8_t {
  /// For each microbatch its factors, the gradient with respect to the logits (N, V) and the normed rows (N,
  /// C), which the first stage multiplies: so it adds what one rank adds, in the same order.
  factors,
  sum,  ///< of all microbatches, with the last of them
};

struct HeadShape {
  std::size_t rows, width, vocabulary;
  core::DType dtype = core::DType::f32;  ///< of values and factors
  std::size_t pieces = 1;                ///< of each sequence, with so many rows each and their own factors

  std::size_t value_bytes() const { return vocabulary * width * core::size_of(dtype); }
  /// Dtype of one message.
  core::DType message_dtype(HeadGradient how) const {
    return how == HeadGradient::sum ? core::DType::f32 : dtype;
  }
  std::size_t message_bytes(HeadGradient how) const {
    const std::size_t factors = pieces * rows * (vocabulary + width);
    return (how == HeadGradient::sum ? vocabulary * width : factors) * core::size_of(message_dtype(how));
  }
};

// Memory is the stage's; an operation that is reported as done is done for later work on its stream.

/// The first stage's end. `stages` is the group of a pipeline's ranks, in order.
class EmbeddingOwner {
 public:
  /// Everything given must outlive it.
  static core::Result<std::unique_ptr<EmbeddingOwner>> create(actors::TrainerGroup& stages,
                                                              const StageMemory& memory, HeadGradient how,
                                                              HeadShape shape);

  /// `values` must not change until settle().
  core::Result<void> give_values(gpu::ConstBufferView values);
  void begin_step(int microbatches) { microbatches_ = microbatches; }
  /// Posts the receive of a microbatch's part; for a sum, that of the last one.
  core::Result<void> take();
  /// Before this microbatch's rows are added to the gradient (V, C), of which each piece has one.
  core::Result<void> add_gradient(int microbatch, TrainableStage& stage, std::span<float* const> gradients);
  core::Result<void> settle();

 private:
  EmbeddingOwner(actors::TrainerGroup& stages, const StageMemory& memory, HeadGradient how, HeadShape shape)
      : stages_(stages), memory_(memory), how_(how), shape_(shape) {}

  actors::TrainerGroup& stages_;
  const StageMemory& memory_;
  HeadGradient how_;
  HeadShape shape_;
  gpu::Buffer received_;
  std::optional<actors::TrainerGroup::Posted> giving_, receiving_;
  int microbatches_ = 0;
};

/// The last stage's end.
class EmbeddingCopy {
 public:
  static core::Result<std::unique_ptr<EmbeddingCopy>> create(actors::TrainerGroup& stages,
                                                             const StageMemory& memory, HeadGradient how,
                                                             HeadShape shape);

  core::Result<void> take_values();
  /// Waits until they have arrived.
  core::Result<const std::byte*> copied();
  void begin_step(int microbatches) { microbatches_ = microbatches; }
  /// Where to add the output layer's gradient of this microbatch; null if factors are sent.
  core::Result<float*> gradient(int microbatch);
  /// The gradient requested by gradient() is complete; for factors, these of each piece, which are copied.
  core::Result<void> keep(int microbatch, std::span<const HeadFactors> factors);
  /// Posts the send of a microbatch's part; for a sum, with the last one.
  core::Result<void> give(int microbatch);
  core::Result<void> settle();

 private:
  struct Part {
    gpu::Buffer values;  ///< of one message
    std::optional<actors::TrainerGroup::Posted> giving;
  };
  EmbeddingCopy(actors::TrainerGroup& stages, const StageMemory& memory, HeadGradient how, HeadShape shape)
      : stages_(stages), memory_(memory), how_(how), shape_(shape) {}
  Part& part(int microbatch) { return parts_[static_cast<std::size_t>(microbatch) % parts_.size()]; }

  actors::TrainerGroup& stages_;
  const StageMemory& memory_;
  HeadGradient how_;
  HeadShape shape_;
  gpu::Buffer values_;
  std::optional<actors::TrainerGroup::Posted> taking_;
  /// For factors, one per stage, in turn: the first stage takes them that many microbatches later.
  std::vector<Part> parts_;
  int microbatches_ = 0;
};

}  // namespace troupe::apps::gpt
