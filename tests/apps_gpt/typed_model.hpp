#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/host_engine.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/stage/stage_core.hpp"

namespace troupe::apps::gpt {

/// The groups that a model computes with; null: alone.
template <class T>
struct Sharing {
  TensorGroup<T>* layers = nullptr;   ///< members keep parts of the same layers
  bool sequence = false;              ///< and only their own rows of the residual stream
  TensorGroup<T>* context = nullptr;  ///< members keep parts of the same sequences
  std::size_t slices = 1;             ///< of each layer, that this member computes
};

/// The host's model over elements of a type, for gradient checks in fp64: a decoder-only transformer
/// (pre-norm, rotary positions, causal attention) and room for the activations of one microbatch. It owns no
/// parameters: each call is given pointers to them in the order of parameter_table(). One thread at a time;
/// the same inputs give the same bits on machines of one kind.
template <class T>
class BasicModel {
 public:
  using Tokens = std::span<const std::int32_t>;
  /// The types of Pass.
  using Parameters = std::span<const std::byte* const>;
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

  /// Like logits(), for the token after that of `row`.
  core::Result<std::span<const T>> logits_of(Parameters parameters, Tokens tokens, std::size_t row,
                                             const StepHooks& hooks = {});

  const ModelConfig& config() const { return core_->config(); }
  const ParameterTable& table() const { return core_->table(); }
  BatchShape shape() const { return shape_; }
  std::size_t activation_bytes() const { return activation_bytes_; }
  /// Where the tokens of the last pass went, by layer; empty for a layer without experts.
  std::span<const ExpertRoutes> routes() const { return core_->activations(0, 0).routes; }

 private:
  using Core = StageCore<HostEngine<T>>;

  BasicModel(BatchShape shape, bool adds_routes, std::unique_ptr<std::byte[]> memory, std::size_t bytes,
             std::unique_ptr<Core> core)
      : shape_(shape),
        adds_routes_(adds_routes),
        memory_(std::move(memory)),
        activation_bytes_(bytes),
        core_(std::move(core)) {}

  core::Result<double> loss(const Pass<T>& pass, Tokens tokens, Tokens targets);

  BatchShape shape_;
  bool adds_routes_;  // to the loss; without `context`
  std::unique_ptr<std::byte[]> memory_;
  std::size_t activation_bytes_;
  std::unique_ptr<Core> core_;
  std::vector<T> whole_logits_;  // (V) of the last logits(), if a group shares the vocabulary
};

using Model = BasicModel<float>;

}  // namespace troupe::apps::gpt
