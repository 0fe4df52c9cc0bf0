#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/cuda/cuda_activations.hpp"
#include "apps/gpt/cuda/kernels.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Sends microbatches' tokens to the device through pinned memory, a few ahead of the passes that read them.
class TokenUpload {
 public:
  /// `words` is where they arrive, token_words() of them. The configuration's vocabulary is the part of the
  /// whole one that begins with `first`: there tokens and targets are counted from it, or kElsewhere.
  static core::Result<TokenUpload> create(gpu::Device& device, const ModelConfig& config, BatchShape shape,
                                          std::int32_t* words, std::size_t first = 0);

  /// Enqueues a microbatch, or with no targets a sequence. Waits only while too many are under way.
  core::Result<void> send(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                          gpu::StreamView stream);

  const CudaTokens& place() const { return place_; }
  /// Of the microbatch that was sent last.
  const cuda::EmbeddingOrder& order() const { return order_; }
  /// Of its targets, those that are not kNoTarget.
  std::size_t learned() const { return learned_; }

 private:
  struct Slot {
    gpu::Buffer memory;
    gpu::Event sent;
  };

  TokenUpload(const ModelConfig& config, BatchShape shape, std::int32_t* words, std::size_t first);
  std::int32_t here(std::int32_t token) const;
  /// Tokens as they are sent.
  void sort_rows(std::span<const std::int32_t> tokens, const CudaTokens& to);

  ModelConfig config_;
  BatchShape shape_;
  std::int32_t* words_;
  std::int64_t first_token_;
  CudaTokens place_;
  cuda::EmbeddingOrder order_{};
  std::size_t learned_ = 0;
  std::vector<std::int32_t> first_;  ///< of each token of the vocabulary, in the sorted order
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
};

}  // namespace troupe::apps::gpt
