#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "actors/session/trainer_group.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// A tied embedding is a parameter of the first stage alone: its state, its update and its part in norms are
// there once. The last stage has a copy of the values, which it gets once per step, and gives its part of the
// gradient to the first one, which adds it where one rank would.

/// How often the last stage gives gradients.
enum class GiveGradients {
  each_microbatch,  ///< so that the first stage adds in the order of one rank
  each_step,        ///< their sum, with the last microbatch
};

/// The first stage's end. `stages` is the group of a pipeline's ranks, in order.
class EmbeddingOwner {
 public:
  EmbeddingOwner(actors::TrainerGroup& stages, GiveGradients when, std::size_t elements);

  /// `values` must stay as they are until settle().
  core::Result<void> give_values(std::span<const float> values);
  core::Result<void> begin_step(int microbatches);
  /// Before the rows of this microbatch are added to the gradient.
  core::Result<void> add_gradient(int microbatch, std::span<float> gradient);
  core::Result<void> settle();

 private:
  core::Result<void> post_receive();

  actors::TrainerGroup& stages_;
  GiveGradients when_;
  std::vector<float> received_;
  std::optional<actors::TrainerGroup::Posted> giving_, receiving_;
  int microbatches_ = 0;
};

/// The last stage's end.
class EmbeddingCopy {
 public:
  EmbeddingCopy(actors::TrainerGroup& stages, GiveGradients when, std::size_t elements);

  core::Result<void> take_values();
  /// Waits until they are there.
  core::Result<const float*> copied();
  void begin_step(int microbatches);
  /// Where the output layer's gradient of this microbatch is to be added.
  core::Result<float*> gradient(int microbatch);
  core::Result<void> give_gradient(int microbatch);
  core::Result<void> settle();

 private:
  struct Part {
    std::vector<float> values;
    std::optional<actors::TrainerGroup::Posted> giving;
  };
  Part& part(int microbatch) { return parts_[static_cast<std::size_t>(microbatch) % parts_.size()]; }

  actors::TrainerGroup& stages_;
  GiveGradients when_;
  std::vector<float> values_;
  std::optional<actors::TrainerGroup::Posted> taking_;
  /// As many as stages, in turn: the first stage takes a gradient so many microbatches later.
  std::vector<Part> parts_;
  int microbatches_ = 0;
};

}  // namespace troupe::apps::gpt
