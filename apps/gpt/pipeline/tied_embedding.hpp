#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "apps/gpt/pipeline/stage_model.hpp"
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

  std::size_t elements() const { return vocabulary * width; }
  /// What is sent at once.
  std::size_t message(HeadGradient how) const {
    return how == HeadGradient::sum ? elements() : rows * (vocabulary + width);
  }
};

/// The first stage's end. `stages` is the group of a pipeline's ranks, in order.
class EmbeddingOwner {
 public:
  EmbeddingOwner(actors::TrainerGroup& stages, HeadGradient how, HeadShape shape);

  /// `values` must stay as they are until settle().
  core::Result<void> give_values(std::span<const float> values);
  core::Result<void> begin_step(int microbatches);
  /// Before the rows of this microbatch are added to the gradient.
  core::Result<void> add_gradient(int microbatch, float* gradient);
  core::Result<void> settle();

 private:
  core::Result<void> post_receive();

  actors::TrainerGroup& stages_;
  HeadGradient how_;
  HeadShape shape_;
  std::vector<float> received_;
  std::optional<actors::TrainerGroup::Posted> giving_, receiving_;
  int microbatches_ = 0;
};

/// The last stage's end.
class EmbeddingCopy {
 public:
  EmbeddingCopy(actors::TrainerGroup& stages, HeadGradient how, HeadShape shape);

  core::Result<void> take_values();
  /// Waits until they are there.
  core::Result<const float*> copied();
  void begin_step(int microbatches);
  /// Where the output layer's gradient of this microbatch is to be added; null where factors are given.
  core::Result<float*> gradient(int microbatch);
  /// Both are read before it returns.
  core::Result<void> give_gradient(int microbatch, const HeadFactors& factors);
  core::Result<void> settle();

 private:
  struct Part {
    std::vector<float> values;  ///< of a message
    std::optional<actors::TrainerGroup::Posted> giving;
  };
  Part& part(int microbatch) { return parts_[static_cast<std::size_t>(microbatch) % parts_.size()]; }

  actors::TrainerGroup& stages_;
  HeadGradient how_;
  HeadShape shape_;
  std::vector<float> values_;
  std::optional<actors::TrainerGroup::Posted> taking_;
  /// Of factors as many as stages, in turn: the first stage takes them so many microbatches later.
  std::vector<Part> parts_;
  int microbatches_ = 0;
};

}  // namespace troupe::apps::gpt
