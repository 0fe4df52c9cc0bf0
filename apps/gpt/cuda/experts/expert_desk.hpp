#pragma once

#include <span>
#include <vector>

#include "apps/gpt/cuda/experts/cuda_expert_activations.hpp"
#include "apps/gpt/experts/expert_activations.hpp"
#include "apps/gpt/experts/router_decision.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Where the host decides which experts tokens go to, by the code of the host's own layer (core/experts), so
/// ties and drops are the same: logits come down, and places and weights go up, once per layer and pass; of
/// backward the gradients by the weights come down and those by the logits go up. The only places where a
/// pass waits for the device.
class ExpertDesk {
 public:
  /// For all layers of a model, whose microbatches have `rows` tokens of this rank, and as many of each of
  /// `members` that share sequences. The device must outlive it.
  static core::Result<ExpertDesk> create(gpu::Device& device, const ExpertConfig& config, std::size_t layers,
                                         std::size_t rows, std::size_t members);

  /// Sends places and weights of what tokens with these logits (N, E) choose.
  core::Result<void> choose(std::size_t layer, std::size_t rows, const float* logits,
                            const ExpertMemory& memory, gpu::StreamView stream);
  /// Where ranks share sequences: likewise, of the logits (`all` rows, E) of all by position, of which the
  /// first `rows` are decided about.
  core::Result<void> choose_together(std::size_t layer, const MembersRows& members, std::size_t all,
                                     std::size_t rows, const float* logits, const ExpertMemory& memory,
                                     gpu::StreamView stream);
  /// Sends where received rows go among grouped products, by routes(layer).exchange.
  void send_groups(std::size_t layer, const ExpertMemory& memory, gpu::StreamView stream);
  /// Sends what balance adds in the layers from `first` on, a double each. Pinned until the next pass's
  /// choose().
  void send_losses(std::size_t first, gpu::BufferView losses, gpu::StreamView stream);
  /// Gradients by the logits (N, E), with those of the router's losses, from those by the weights (N, K).
  template <class E>
  core::Result<void> logit_gradients(std::size_t layer, const float* d_weights, const RouterShare& share,
                                     const StepHooks& hooks, E* d_logits, gpu::StreamView stream);

  /// Of the last pass. The layer adds what its ranks exchange.
  ExpertRoutes& routes(std::size_t layer) { return routes_[layer]; }
  std::span<const ExpertRoutes> routes() const { return routes_; }

 private:
  ExpertDesk(const ExpertConfig& config, std::size_t layers)
      : config_(config), routes_(layers), logits_(layers), weights_(layers) {}
  core::Result<void> fetch(const float* from, std::span<float> to, gpu::StreamView stream);
  /// What the host knows of the layer's last pass, with room for so many rows.
  RouterRows<float> rows_of(std::size_t layer, std::size_t rows);
  void send_choices(std::size_t layer, const ExpertMemory& memory, gpu::StreamView stream);

  ExpertConfig config_;
  std::vector<ExpertRoutes> routes_;
  std::vector<std::vector<float>> logits_;   ///< (N, E) of each layer's last pass
  std::vector<std::vector<float>> weights_;  ///< (N, K) likewise
  std::vector<float> all_logits_;            ///< of all rows of ranks that share sequences
  gpu::Buffer down_, up_, groups_, losses_;  ///< pinned; what was sent is gone when the next one has come
  gpu::Event copied_;
};

}  // namespace troupe::apps::gpt
