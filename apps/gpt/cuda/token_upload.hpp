#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/cuda/cuda_activations.hpp"
#include "apps/gpt/kernels/kernels.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Sends microbatches' tokens to the device through pinned memory, a few ahead of the passes that read them.
class TokenUpload {
 public:
  /// The tokens arrive at `words`, which has token_words(). The configuration's vocabulary is the part of the
  /// whole one that begins at `first`: tokens and targets are counted from there, or are kElsewhere.
  static core::Result<TokenUpload> create(gpu::Device& device, const ModelConfig& config, BatchShape shape,
                                          std::int32_t* words, std::size_t first = 0);

  /// Enqueues a microbatch, or a sequence if there are no targets. Waits only while too many are in flight.
  core::Result<void> send(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                          gpu::StreamView stream);

  const CudaTokens& place() const { return place_; }
  /// For the microbatch sent last.
  const cuda::EmbeddingOrder& order() const { return order_; }
  /// The number of its targets that are not kNoTarget, or 1 if there are none.
  std::size_t learned() const { return learned_; }

 private:
  struct Slot {
    gpu::Buffer memory;
    gpu::Event sent;
  };

  TokenUpload(const ModelConfig& config, BatchShape shape, std::int32_t* words, std::size_t first);
  std::int32_t here(std::int32_t token) const;
  /// Prepares the tokens in the form in which they are sent.
  void sort_rows(std::span<const std::int32_t> tokens, const CudaTokens& to);

  ModelConfig config_;
  BatchShape shape_;
  std::int32_t* words_;
  std::int64_t first_token_;
  CudaTokens place_;
  cuda::EmbeddingOrder order_{};
  std::size_t learned_ = 0;
  std::vector<std::int32_t> first_;  ///< by token of the vocabulary, in the sorted order
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
};

}  // namespace troupe::apps::gpt
