#pragma once

#include <span>
#include <vector>

#include "apps/gpt/cuda/cuda_expert_activations.hpp"
#include "apps/gpt/model/expert_activations.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/experts/decision.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Here the host decides which experts tokens go to, with the code of the host's own layer (core/experts), so
/// ties and drops are the same: logits are copied to the host, places and weights back, once per layer and
/// pass; in backward the gradients with respect to the weights are copied to the host, those with respect to
/// the logits back. Only here does a pass wait for the device.
class ExpertDesk {
 public:
  /// For all layers of a model whose microbatches have `rows` tokens of this rank, and as many of each of
  /// `members` that share sequences. The device must outlive it.
  static core::Result<ExpertDesk> create(gpu::Device& device, const ExpertConfig& config, std::size_t layers,
                                         std::size_t rows, std::size_t members);

  /// Sends the places and weights that tokens with these logits (N, E) choose. `router_factor` is the hooks'.
  core::Result<void> choose(std::size_t layer, std::size_t rows, const float* logits, double router_factor,
                            const ExpertMemory& memory, gpu::StreamView stream);
  /// The same if ranks share sequences: `logits` (`all` rows, E) are those of all members by position; it
  /// decides about the first `rows` of them.
  core::Result<void> choose_together(std::size_t layer, const core::MembersRows& members, std::size_t all,
                                     std::size_t rows, const float* logits, double router_factor,
                                     const ExpertMemory& memory, gpu::StreamView stream);
  /// Sends the places of received rows among grouped products, following routes(layer).exchange.
  void send_groups(std::size_t layer, const ExpertMemory& memory, gpu::StreamView stream);
  /// Sends the balance losses of the layers from `first` on, one double each. They stay pinned until the next
  /// pass's choose().
  void send_losses(std::size_t first, gpu::BufferView losses, gpu::StreamView stream);
  /// Gradients with respect to the logits (N, E), including the router losses, from those with respect to the
  /// weights (N, K).
  template <class E>
  core::Result<void> logit_gradients(std::size_t layer, const float* d_weights,
                                     const core::RouterShare& share, const StepHooks& hooks, E* d_logits,
                                     gpu::StreamView stream);

  /// The routes of the last pass. The layer adds what its ranks exchange.
  ExpertRoutes& routes(std::size_t layer) { return routes_[layer]; }
  std::span<const ExpertRoutes> routes() const { return routes_; }

 private:
  ExpertDesk(const ExpertConfig& config, std::size_t layers)
      : config_(config), routes_(layers), logits_(layers), weights_(layers) {}
  core::Result<void> fetch(const float* from, std::span<float> to, gpu::StreamView stream);
  /// What the host knows about the layer's last pass, with room for this many rows.
  core::RouterRows<float> rows_of(std::size_t layer, std::size_t rows);
  void send_choices(std::size_t layer, const ExpertMemory& memory, gpu::StreamView stream);

  ExpertConfig config_;
  std::vector<ExpertRoutes> routes_;
  std::vector<std::vector<float>> logits_;   ///< (N, E) of each layer's last pass
  std::vector<std::vector<float>> weights_;  ///< (N, K) as above
  std::vector<float> all_logits_;            ///< of all rows of the ranks that share sequences
  gpu::Buffer down_, up_, groups_, losses_;  ///< pinned; each is reused when the next data arrives
  gpu::Event copied_;
};

}  // namespace troupe::apps::gpt
