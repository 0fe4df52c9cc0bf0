#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/expert_tally.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A model with the interface that the distributed trainer uses, wherever its tensors are. Passes may be only
/// enqueued when they return; hooks are called during enqueueing, so whatever a hook lets proceed must follow
/// the stream. One thread at a time.
class TrainableModel {
 public:
  using Tokens = std::span<const std::int32_t>;
  /// In table order, in the model's dtype, in the memory of its device. They must live until the losses are
  /// taken.
  using Parameters = std::span<const std::byte* const>;
  /// fp32, as above.
  using Gradients = std::span<float* const>;

  virtual ~TrainableModel() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ParameterTable& table() const = 0;
  virtual BatchShape shape() const = 0;
  virtual core::DType dtype() const = 0;
  virtual std::size_t activation_bytes() const = 0;

  /// Adds the gradients of a microbatch's mean loss. tokens and targets are (B, T) and may be freed when it
  /// returns; each must be in the vocabulary, or for targets be kNoTarget.
  virtual core::Result<void> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens,
                                              Tokens targets, const StepHooks& hooks) = 0;
  /// Only the loss, for evaluation.
  virtual core::Result<void> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                                          const StepHooks& hooks) = 0;
  /// The mean losses, in nats, of all passes since the last call, in order. Waits for them.
  virtual core::Result<std::vector<double>> take_losses() = 0;
  /// Where the tokens went in the backward passes since the last call. Empty without experts.
  virtual ExpertTally take_expert_tally() { return {}; }
  /// Logits (V) of the token that follows one sequence of 1..T tokens. Valid until the next call.
  virtual core::Result<std::span<const float>> logits(Parameters parameters, Tokens tokens,
                                                      const StepHooks& hooks) = 0;
};

}  // namespace troupe::apps::gpt
