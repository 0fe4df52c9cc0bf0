#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "apps/gpt/activations.hpp"
#include "apps/gpt/experts/expert_activations.hpp"
#include "apps/gpt/parameters.hpp"
#include "apps/gpt/pass.hpp"
#include "apps/gpt/tensor/group.hpp"
#include "apps/gpt/tensor/share.hpp"
#include "apps/pipeline/stage_steps.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps::gpt {

// N rows of a microbatch, C width, V vocabulary.

/// What one stage keeps in memory beside parameters.
struct StageShape {
  BatchShape batch;  ///< this rank's tokens of it, where a group shares each sequence
  Keep keep = Keep::activations;
  PassSlots slots{1, 1};  ///< microbatches of a chunk whose activations and inputs are kept at once
  bool is_split = false;  ///< backward in two halves
  TensorShare share{};    ///< of each layer, where a group of ranks shares the stage
  std::size_t context_parallel = 1;  ///< ranks that share each sequence
};

/// With whom a rank computes a stage; null: alone.
struct StageGroups {
  TensorGroup<float>* layers = nullptr;     ///< members have parts of its layers
  TensorGroup<float>* sequences = nullptr;  ///< members have parts of the same sequences
};

/// Of a microbatch; a chunk in the middle of the model reads neither.
struct StageText {
  std::span<const std::int32_t> tokens, targets;
};

/// A pass of a stage, with pointers in the order of the whole model's table, of which a chunk uses its own.
struct StagePass {
  std::span<const std::byte* const> parameters;  ///< in the stage's dtype, in its device's memory
  std::span<float* const> gradients;             ///< likewise; empty where nothing is added
  const StepHooks& hooks;
};

/// The factors of the output layer's gradient: by the logits (N, V) and the normed rows (N, C).
struct HeadFactors {
  gpu::ConstBufferView logits, normed;
};

/// Of a microbatch, in nats.
struct StageLoss {
  double words = 0;
  /// What balance adds to it, by layer, of all layers; where the host adds it by itself (RouteLosses) empty.
  std::vector<double> routes{};

  /// Added in the order of layers.
  double total() const { return std::accumulate(routes.begin(), routes.end(), words); }
};

/// One stage of a pipeline as the trainer drives it, wherever its tensors lie: as TrainableModel, with one
/// microbatch of a chunk per slot. It owns no parameters.
class TrainableStage {
 public:
  virtual ~TrainableStage() = default;

  /// Of the whole model, or of the share of it that this rank has of each layer.
  virtual const ParameterTable& table() const = 0;
  /// Of parameters and rows.
  virtual core::DType dtype() const = 0;
  /// Those of the residual stream that this rank keeps of a microbatch.
  virtual std::size_t own_rows() const = 0;
  /// Likewise of one sequence of `length` tokens.
  virtual std::size_t own_rows_of(std::size_t length) const = 0;

  /// Own rows (N, C): what a forward reads where it does not begin the model, in a slot of inputs, what it
  /// writes, and the gradient, first by the output and after backward by the input. On a GPU what balance
  /// adds to the microbatch's loss, a double per layer, lies behind the rows of models with experts.
  virtual gpu::BufferView input(int slot) = 0;
  virtual gpu::BufferView output(int chunk, int slot) = 0;
  virtual gpu::BufferView gradient(int slot) = 0;

  /// The text may go when forward and loss have returned, but on the host must stay until the end of backward
  /// and of what is put off.
  virtual core::Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) = 0;
  /// Of a chunk that ends the model, after its forward.
  virtual core::Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) = 0;
  /// The first so many of the losses that are not taken yet, in order. Waits for them alone.
  virtual core::Result<std::vector<StageLoss>> take_losses(std::size_t count) = 0;
  /// Of a microbatch that was forward, and has a loss. Where backwards are split it adds nothing to
  /// gradients; backward_weight() does.
  virtual core::Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) = 0;
  virtual core::Result<void> backward_weight(int slot, const StagePass& pass) = 0;

  /// Of a chunk that ends the model, once backward says that the output layer is ready.
  virtual HeadFactors head_factors(int chunk, int slot) = 0;
  /// Adds to `gradient` (V, C) what a microbatch makes of it.
  virtual void add_head_gradient(const HeadFactors& factors, float* gradient) = 0;
  /// Where forward sent the rows of a model with experts: of all layers, of which the chunk's are in use.
  virtual std::span<const ExpertRoutes> routes(int chunk, int slot) = 0;

  /// One sequence of 1..T tokens through a chunk, in the first slots.
  virtual core::Result<void> forward_sequence(int chunk, const StagePass& pass,
                                              std::span<const std::int32_t> tokens) = 0;
  /// After it, of a chunk that ends the model: logits (V) of the token that follows that one of the sequence.
  /// They live until the next call.
  virtual core::Result<std::span<const float>> logits_of(int chunk, std::size_t token,
                                                         const StagePass& pass) = 0;
};

}  // namespace troupe::apps::gpt
