#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "core/result.hpp"

namespace troupe::apps::gpt {

class ExpertPeers;

/// How a runtime takes part in a pass. Both may be empty. Indices are places in the parameter table.
struct StepHooks {
  /// Called before forward first reads a parameter, and again before backward first reads it or adds to its
  /// gradient. It returns when that may be done, and may first set where the values and the gradient are; an
  /// Error ends the pass.
  std::function<core::Result<void>(std::size_t parameter)> before_use;
  /// Called when forward is over and backward begins, before before_use of what backward reads first.
  std::function<core::Result<void>()> begin_backward{};
  /// Called when this microbatch has added all it will add to the parameter's gradient: in backward order, at
  /// the earliest moment. A tied embedding is last.
  std::function<void(std::size_t parameter)> gradient_ready;
  double loss_scale = 1;         ///< multiplies all gradients, from that of the logits on; not the loss
  bool last_microbatch = true;   ///< of its lane: gradients that are ready are complete
  ExpertPeers* peers = nullptr;  ///< of models whose experts are spread over ranks
  /// Takes the place of loss_scale for the losses of routers, where the pass has a part of a microbatch whose
  /// routers decide about all of it.
  std::optional<double> router_scale{};
  /// Tokens of the one sequence that ranks share, where it was filled up: those behind go to no experts.
  std::optional<std::size_t> length{};
};

template <class T>
class WeightWork;

/// One forward, or forward and backward, over given parameters. Pointers are in table order.
template <class T>
struct Pass {
  std::span<const T* const> parameters;
  std::span<T* const> gradients;  ///< empty when there is no backward; else added to
  const StepHooks& hooks;
  /// Where backward puts off what it would add to gradients (apps/gpt/pipeline/weight_work.hpp); null: it
  /// adds at once.
  WeightWork<T>* later = nullptr;

  core::Result<const T*> use(std::size_t parameter) const {
    if (hooks.before_use) {
      if (auto readable = hooks.before_use(parameter); !readable) return tl::unexpected(readable.error());
    }
    return parameters[parameter];
  }

  T* gradient(std::size_t parameter) const { return gradients[parameter]; }

  void ready(std::size_t parameter) const {
    if (hooks.gradient_ready) hooks.gradient_ready(parameter);
  }
};

}  // namespace troupe::apps::gpt
