#pragma once

#include <cstddef>

#include "apps/gpt/cuda/cuda_activations.hpp"
#include "apps/gpt/cuda/cuda_block.hpp"
#include "apps/gpt/model/weight_work.hpp"
#include "core/errors.hpp"
#include "gpu/buffer.hpp"
#include "gpu/kernels.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// As WeightWork, for a pass on a GPU: what it needs is computed in its own memory, or copied there. That is
/// enqueued like the passes, and so is the deferred work.
template <class E>
class CudaWeightWork : public PutOffWork<CudaPass<E>> {
 public:
  /// `memory` has kept_bytes(); `stream` is that of the passes.
  CudaWeightWork(gpu::BufferView memory, gpu::StreamView stream)
      : memory_(memory), place_(memory.data), stream_(stream) {}

  void begin() {
    place_ = ByteCarver(memory_.data);
    this->clear();
  }
  /// Memory that is valid until the next begin().
  E* take(std::size_t count) {
    E* room = place_.take<E>(count);
    CHECK(place_.bytes() <= memory_.bytes, "what the weights' backward needs fits in its memory");
    return room;
  }
  /// A copy in that memory.
  const E* keep(const E* values, std::size_t count) {
    E* copy = take(count);
    const std::size_t bytes = count * sizeof(E);
    if (bytes > 0) {
      gpu::copy({reinterpret_cast<const std::byte*>(values), bytes},
                {reinterpret_cast<std::byte*>(copy), bytes}, stream_);
    }
    return copy;
  }

 private:
  gpu::BufferView memory_;
  ByteCarver place_;
  gpu::StreamView stream_;
};

/// Where to compute `count` elements that the weights' half of the pass's backward reads: in `scratch`,
/// unless that half is deferred.
template <class E>
E* place_for_weights(const CudaPass<E>& pass, E* scratch, std::size_t count) {
  return pass.later == nullptr ? scratch : pass.later->take(count);
}

/// Memory of a CudaWeightWork for a microbatch in a part of the model. A rank has own_rows of the residual
/// stream, fewer than all with `sequence` parallelism; then gathered rows are kept too.
template <class E>
std::size_t kept_bytes(const ModelConfig& config, std::size_t rows, std::size_t own_rows, ModelPart part,
                       bool sequence);

}  // namespace troupe::apps::gpt
