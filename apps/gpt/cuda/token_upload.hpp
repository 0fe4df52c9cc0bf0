#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/model/activations.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

// N rows.

/// What the host sends with a microbatch.
struct CudaTokens {
  std::int32_t* tokens;         // (N)
  std::int32_t* targets;        // (N)
  std::int32_t* order;          // (N), see cuda::EmbeddingOrder
  std::int32_t* segments;       // (segments_at_most + 1)
  std::int32_t* kinds;          // (N), the distinct tokens
  std::int32_t* first_segment;  // (N + 1)
};

/// The maximum number of segments of the embedding's gradient.
std::size_t segments_at_most(const ModelConfig& config, BatchShape shape);

/// Number of a microbatch's integers, which are contiguous, and their places.
std::size_t token_words(const ModelConfig& config, BatchShape shape);
CudaTokens place_tokens(std::int32_t* words, const ModelConfig& config, BatchShape shape);

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
