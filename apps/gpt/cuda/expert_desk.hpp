#pragma once

#include <span>
#include <vector>

#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/expert_choice.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Here the host decides which experts tokens go to, with the code of the host's own layer (core/experts), so
/// ties and drops are the same: logits are copied to the host, places and weights back, once per layer and
/// forward pass. Only here does a pass wait for the device.
class ExpertDesk {
 public:
  /// For all layers of a model whose microbatches have `rows` tokens of this rank, and as many of each of
  /// `members` that share sequences. The device must outlive it.
  static core::Result<ExpertDesk> create(gpu::Device& device, const ExpertConfig& config, std::size_t layers,
                                         std::size_t rows, std::size_t members);

  /// Sends the places and weights that tokens with these logits choose: the pass's (N, E), or if ranks share
  /// sequences, those of all members by position.
  core::Result<void> choose(std::size_t layer, ExpertRoutes& routes, const ExpertShape& shape,
                            const float* logits, const StepHooks& hooks, const ExpertChoices<float>& memory,
                            gpu::StreamView stream);
  /// Sends the places of received rows among grouped products, following the exchange.
  void send_groups(const core::ExpertExchange& exchange, const ExpertChoices<float>& memory,
                   gpu::StreamView stream);
  /// Sends the balance losses of these layers, one double each. They stay pinned until the next pass's
  /// choose().
  void send_losses(std::span<const ExpertRoutes> layers, gpu::BufferView losses, gpu::StreamView stream);

 private:
  explicit ExpertDesk(const ExpertConfig& config) : config_(config) {}
  core::Result<void> fetch(const float* from, std::span<float> to, gpu::StreamView stream);
  /// What the host is about to know about the layer's pass.
  ExpertActivations<float> on_host(std::size_t layer, ExpertRoutes& routes) {
    ExpertActivations<float> known;
    known.routes = &routes;
    known.layer = layer;
    known.logits = logits_.data();
    known.sent.weights = weights_.data();
    return known;
  }
  void send_choices(const ExpertRoutes& routes, const ExpertChoices<float>& memory, gpu::StreamView stream);

  ExpertConfig config_;
  std::vector<float> logits_;                ///< (N, E)
  std::vector<float> weights_;               ///< (N, K)
  std::vector<float> all_logits_;            ///< of all rows of the ranks that share sequences
  gpu::Buffer down_, up_, groups_, losses_;  ///< pinned; each is reused when the next data arrives
  gpu::Event copied_;
};

}  // namespace troupe::apps::gpt
