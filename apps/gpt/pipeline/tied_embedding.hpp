#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/pipeline/stage_memory.hpp"
#include "apps/gpt/pipeline/trainable_stage.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// N rows of a microbatch, C width, V vocabulary, or what the stage's rank has of it where ranks share layers.

// A tied embedding is a parameter of the first stage alone: its state, its update and its part in norms are
// there once. The last stage has a copy of the values, which it gets once per step, and gives its part of the
// gradient to the first one, which adds it where one rank would.

/// How the output layer's part of the gradient, (V, C), comes to the first stage.
enum class HeadGradient : std::uint8_t {
  /// Of each microbatch its factors, by the logits (N, V) and the normed rows (N, C), which the first stage
  /// multiplies: so it adds what one rank adds, in its order.
  factors,
  sum,  ///< of all microbatches, with the last of them
};

struct HeadShape {
  std::size_t rows, width, vocabulary;
  core::DType dtype = core::DType::f32;  ///< of values and factors

  std::size_t value_bytes() const { return vocabulary * width * core::size_of(dtype); }
  /// What is sent at once.
  core::DType message_dtype(HeadGradient how) const {
    return how == HeadGradient::sum ? core::DType::f32 : dtype;
  }
  std::size_t message_bytes(HeadGradient how) const {
    const std::size_t elements = how == HeadGradient::sum ? vocabulary * width : rows * (vocabulary + width);
    return elements * core::size_of(message_dtype(how));
  }
};

// Memory is the stage's, and what is said to be done is done for what its stream is given next.

/// The first stage's end. `stages` is the group of a pipeline's ranks, in order.
class EmbeddingOwner {
 public:
  /// Everything given outlives it.
  static core::Result<std::unique_ptr<EmbeddingOwner>> create(actors::TrainerGroup& stages,
                                                              const StageMemory& memory, HeadGradient how,
                                                              HeadShape shape);

  /// `values` must stay as they are until settle().
  core::Result<void> give_values(gpu::ConstBufferView values);
  void begin_step(int microbatches) { microbatches_ = microbatches; }
  /// Posts the receive of a microbatch's part; of a sum, that of the last one.
  core::Result<void> take();
  /// Before the rows of this microbatch are added to the gradient (V, C).
  core::Result<void> add_gradient(int microbatch, TrainableStage& stage, float* gradient);
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
  /// Waits until they are there.
  core::Result<const std::byte*> copied();
  void begin_step(int microbatches) { microbatches_ = microbatches; }
  /// Where the output layer's gradient of this microbatch is to be added; null where factors are given.
  core::Result<float*> gradient(int microbatch);
  /// What gradient() was asked for is there, of factors these, which are copied.
  core::Result<void> keep(int microbatch, const HeadFactors& factors);
  /// Posts the send of a microbatch's part; of a sum, with the last one.
  core::Result<void> give(int microbatch);
  core::Result<void> settle();

 private:
  struct Part {
    gpu::Buffer values;  ///< of a message
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
  /// Of factors as many as stages, in turn: the first stage takes them so many microbatches later.
  std::vector<Part> parts_;
  int microbatches_ = 0;
};

}  // namespace troupe::apps::gpt
