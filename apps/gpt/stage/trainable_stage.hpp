#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/share.hpp"
#include "apps/pipeline/stage_steps.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps::gpt {

// N rows of a microbatch, C width, V vocabulary.

/// What one stage keeps in memory besides parameters.
struct StageShape {
  BatchShape batch;  ///< one member's tokens of it, if a group shares each sequence
  Keep keep = Keep::activations;
  PassSlots slots{1, 1};  ///< the number of microbatches of a chunk whose activations and inputs are kept at
                          ///< a time
  bool is_split = false;  ///< backward is in two halves
  TensorShare share{};    ///< of each layer, if a group of ranks shares the stage
  std::size_t context_parallel = 1;  ///< members that share each sequence
};

/// The ranks that a rank computes a stage with; null: alone.
struct StageGroups {
  TensorGroup<float>* layers = nullptr;     ///< members have parts of its layers
  TensorGroup<float>* sequences = nullptr;  ///< members have parts of the same sequences
};

using TokenSpan = std::span<const std::int32_t>;

/// The text of a microbatch; a chunk in the middle of the model reads neither.
struct StageText {
  TokenSpan tokens, targets;
};

/// A pass of a stage, with pointers in the order of the whole model's table, of which a chunk uses its own.
struct StagePass {
  std::span<const std::byte* const> parameters;  ///< in the stage's dtype, in its device's memory; they
                                                 ///< must live until the losses are taken
  std::span<float* const> gradients;             ///< as above; empty if nothing is added
  const StepHooks& hooks;
};

/// The factors of the output layer's gradient: the gradient with respect to the logits (N, V) and the normed
/// rows (N, C).
struct HeadFactors {
  gpu::ConstBufferView logits, normed;
};

/// The loss of a microbatch, in nats.
struct StageLoss {
  double words = 0;
  /// The balance loss, by layer, of all layers; empty if the host adds it separately (RouteLosses).
  std::vector<double> routes{};

  /// Added in the order of layers.
  double total() const { return std::accumulate(routes.begin(), routes.end(), words); }
};

/// One stage of a pipeline, or a whole model as the only one, with the interface that the trainer uses,
/// wherever its tensors are: one microbatch of a chunk per slot. It owns no parameters. Passes may be only
/// enqueued when they return; hooks are called during enqueueing, so whatever a hook lets proceed must follow
/// the stream. One thread at a time.
class TrainableStage {
 public:
  virtual ~TrainableStage() = default;

  /// The parameters of the whole model, or of this rank's share of each layer.
  virtual const ParameterTable& table() const = 0;
  /// The dtype of parameters and rows.
  virtual core::DType dtype() const = 0;
  /// The rows of the residual stream that this rank keeps of a microbatch, in each place.
  virtual std::size_t own_rows() const = 0;
  /// The same for one sequence of `length` tokens.
  virtual std::size_t own_rows_of(std::size_t length) const = 0;

  /// Own rows (N, C), those of each of this rank's pieces of sequences in a place of their own: a forward's
  /// input, in a slot of inputs, unless the chunk begins the model; its output; and the gradient, with
  /// respect to the output first and after backward to the input. On a GPU the balance losses of the
  /// microbatch, one double per layer, follow the rows in models with experts.
  virtual StageRows input(int slot) = 0;
  virtual StageRows output(int chunk, int slot) = 0;
  virtual StageRows gradient(int slot) = 0;

  /// The text may be freed once forward and loss have returned, but on the host it must stay until the end of
  /// backward and of deferred work.
  virtual core::Result<void> forward(int chunk, PassSlots slots, const StagePass& pass, StageText text) = 0;
  /// For a chunk that ends the model, after its forward.
  virtual core::Result<void> loss(int chunk, int slot, const StagePass& pass, StageText text) = 0;
  /// Those of the first `count` microbatches that have not been taken yet, in order; of each piece of these,
  /// if this rank has several of its sequences. Waits only for these.
  virtual core::Result<std::vector<StageLoss>> take_losses(std::size_t count) = 0;
  /// For a microbatch that has been through forward, and loss. If backwards are split, it adds nothing to
  /// gradients; backward_weight() does.
  virtual core::Result<void> backward(int chunk, int slot, const StagePass& pass, StageText text) = 0;
  virtual core::Result<void> backward_weight(int slot, const StagePass& pass) = 0;

  /// Those of each of this rank's pieces, for a chunk that ends the model, once backward reports the output
  /// layer as ready.
  virtual std::vector<HeadFactors> head_factors(int chunk, int slot) = 0;
  /// Adds the contribution of a microbatch, or of a piece of it, to `gradient` (V, C).
  virtual void add_head_gradient(const HeadFactors& factors, float* gradient) = 0;
  /// Where forward sent the rows, of one of this rank's pieces of sequences, in a model with experts: for all
  /// layers, of which the chunk's are in use.
  virtual std::span<const ExpertRoutes> routes(int chunk, int slot, std::size_t piece) = 0;

  /// One sequence of 1..T tokens through a chunk, in the first slots.
  virtual core::Result<void> forward_sequence(int chunk, const StagePass& pass,
                                              std::span<const std::int32_t> tokens) = 0;
  /// After that, for a chunk that ends the model: logits (V) of the token that follows this one of the
  /// sequence. Valid until the next call.
  virtual core::Result<std::span<const float>> logits_of(int chunk, std::size_t token,
                                                         const StagePass& pass) = 0;
};

}  // namespace troupe::apps::gpt
