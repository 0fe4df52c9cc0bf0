#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/block.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/context_attention.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/model/rows.hpp"
#include "apps/gpt/stage/part_passes.hpp"
#include "apps/gpt/stage/sharing.hpp"

namespace troupe::apps::gpt {

/// A decoder-only transformer (pre-norm, rotary positions, causal attention) and room for the activations of
/// one microbatch. It owns no parameters: each call is given pointers to them in the order of
/// parameter_table(). One thread at a time; the same inputs give the same bits on machines of one kind.
template <class T>
class BasicModel {
 public:
  using Tokens = std::span<const std::int32_t>;
  using Parameters = std::span<const T* const>;
  using Gradients = std::span<T* const>;

  /// Checks the configuration and that the activations fit in this machine's memory, then allocates them
  /// once. If a group shares the layers, this is one part of the model, and `config` is that of the part
  /// (config_of_share()); tokens, losses and logits are those of the whole model, the same on every member,
  /// while parameters and gradients are the part's. With sequence parallelism norms get a part of the rows,
  /// and add a part of their gradients. If a group shares the context, `shape` has this member's tokens of
  /// each sequence, in the order of positions_of_member(), and losses and gradients belong to these. Routers
  /// of experts decide about the rows of all members; then their losses are only in routes().
  static core::Result<BasicModel> create(const ModelConfig& config, BatchShape shape,
                                         Keep keep = Keep::activations, const Sharing<T>& sharing = {});

  /// Mean loss over the tokens in nats, plus the router losses; adds its gradients to `gradients`. tokens and
  /// targets are (B, T), of the shape given to create(); each must be in the vocabulary. A target may be
  /// kNoTarget. After an Error from a hook the gradients are partly added.
  core::Result<T> forward_backward(Parameters parameters, Gradients gradients, Tokens tokens, Tokens targets,
                                   const StepHooks& hooks = {});

  /// Only the mean loss, for evaluation.
  core::Result<T> forward_loss(Parameters parameters, Tokens tokens, Tokens targets,
                               const StepHooks& hooks = {});

  /// Logits (V) of the token that follows one sequence of 1..T tokens. Valid until the next call.
  core::Result<std::span<const T>> logits(Parameters parameters, Tokens tokens, const StepHooks& hooks = {});

  /// As logits(), for the token after that of `row`.
  core::Result<std::span<const T>> logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                             const StepHooks& hooks = {});

  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return table_; }
  BatchShape shape() const { return shape_; }
  std::size_t activation_bytes() const { return activation_bytes_; }
  /// Where the tokens of the last pass went, by layer; empty for a layer without experts.
  std::span<const ExpertRoutes> routes() const { return activations_.routes; }

 private:
  BasicModel(const ModelConfig& config, BatchShape shape, Keep keep, std::unique_ptr<T[]> memory,
             std::size_t bytes, const Sharing<T>& sharing);

  core::Result<T> loss(const Pass<T>& pass, Tokens tokens, Tokens targets);
  core::Result<void> trunk_forward(BatchShape shape, const Pass<T>& pass, Tokens tokens);
  core::Result<void> backward(const Pass<T>& pass, Tokens tokens, Tokens targets);
  PartContext<T> context(BatchShape shape) const {
    return {{config_, shape, rotary_, tensor(), across()}, table_, whole_model(config_), keep_};
  }
  const TensorParallel<T>* tensor() const { return tensor_ ? &*tensor_ : nullptr; }
  const ContextParallel<T>* across() const { return across_ ? &*across_ : nullptr; }
  /// The whole model's.
  std::size_t vocabulary() const { return config_.vocabulary * (tensor_ ? tensor_->group->size() : 1); }

  ModelConfig config_;
  BatchShape shape_;
  Keep keep_;
  ParameterTable table_;
  Rotary<T> rotary_;
  std::unique_ptr<T[]> memory_;
  std::size_t activation_bytes_;
  Activations<T> activations_;
  std::optional<TensorParallel<T>> tensor_;
  std::optional<ContextParallel<T>> across_;
  std::vector<T> whole_logits_;  // (V) of the last logits(), if a group shares the vocabulary
};

using Model = BasicModel<float>;

/// The machine's total memory, whether free or not.
std::size_t physical_memory_bytes();

}  // namespace troupe::apps::gpt
