#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "apps/gpt/model/element.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

class ExpertPeers;

/// How a runtime takes part in a pass. Both functions may be empty. Indices are places in the parameter
/// table.
struct StepHooks {
  /// Called before forward first reads a parameter, and again before backward first reads it or adds to its
  /// gradient. Returns when this is allowed, and may first set where the values and the gradient are; an
  /// Error ends the pass.
  std::function<core::Result<void>(std::size_t parameter)> before_use;
  /// Called when forward has ended and backward begins, before before_use for what backward reads first.
  std::function<core::Result<void>()> begin_backward{};
  /// Called when this microbatch has added everything to the parameter's gradient: in backward order, at the
  /// earliest moment. A tied embedding comes last.
  std::function<void(std::size_t parameter)> gradient_ready;
  double loss_scale = 1;  ///< multiplies all gradients, from that of the logits on; not the loss
  /// What the sums of the words' losses over a pass's targets, and their gradients, are divided by. Without
  /// it, the number of these targets: then they are means.
  std::optional<std::size_t> loss_rows{};
  /// Multiplies the router losses and their gradients.
  double router_factor = 1;
  bool last_microbatch = true;   ///< of its lane: gradients that are ready are complete
  ExpertPeers* peers = nullptr;  ///< for models whose experts are distributed over ranks
  /// Replaces loss_scale for the router losses, if the pass has a part of a microbatch whose routers decide
  /// about all of it.
  std::optional<double> router_scale{};
  /// What the gradients of the router losses are multiplied by.
  double scale_of_router() const { return router_scale.value_or(loss_scale) * router_factor; }
  /// Tokens of the one sequence that ranks share, if it was padded: the tokens beyond go to no experts.
  std::optional<std::size_t> length{};
};

template <class E>
class WeightWork;

/// One forward, or forward and backward, over given parameters in E. Pointers are in table order.
template <class E>
struct Pass {
  std::span<const std::byte* const> parameters;
  std::span<SumOf<E>* const> gradients;  ///< added to; empty if there is no backward
  const StepHooks& hooks;
  /// Where backward defers what it would add to gradients (apps/gpt/model/weight_work.hpp); null: it adds
  /// directly.
  WeightWork<E>* later = nullptr;

  core::Result<const E*> use(std::size_t parameter) const {
    if (hooks.before_use) {
      if (auto readable = hooks.before_use(parameter); !readable) return tl::unexpected(readable.error());
    }
    return reinterpret_cast<const E*>(parameters[parameter]);
  }

  SumOf<E>* gradient(std::size_t parameter) const { return gradients[parameter]; }

  void ready(std::size_t parameter) const {
    if (hooks.gradient_ready) hooks.gradient_ready(parameter);
  }
};

}  // namespace troupe::apps::gpt
