#pragma once

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/carver.hpp"
#include "apps/gpt/model/model_part.hpp"
#include "apps/gpt/model/pass.hpp"
#include "core/errors.hpp"
#include "gpu/buffer.hpp"
#include "gpu/kernels.hpp"
#include "gpu/stream.hpp"

namespace troupe::apps::gpt {

/// The weights' half of a backward, deferred: what remains to be added to gradients, in order. What it reads
/// is computed in its own memory, or copied there. On a GPU that is enqueued like the passes, and so is the
/// deferred work.
template <class E>
class WeightWork {
 public:
  using Work = std::function<core::Result<void>(const Pass<E>&)>;

  /// `memory` has kept_bytes(); `stream` is that of the passes, null on the host.
  WeightWork(gpu::BufferView memory, std::size_t align, gpu::StreamView stream = nullptr)
      : memory_(memory), align_(align), place_(memory.data, align), stream_(stream) {}

  void begin() {
    place_ = Carver(memory_.data, align_);
    works_.clear();
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
    const gpu::ConstBufferView from{reinterpret_cast<const std::byte*>(values), count * sizeof(E)};
    const gpu::BufferView to{reinterpret_cast<std::byte*>(copy), from.bytes};
    if (count > 0) stream_ == nullptr ? gpu::copy(from, to) : gpu::copy(from, to, stream_);
    return copy;
  }

  void add(Work work) { works_.push_back(std::move(work)); }
  core::Result<void> run(const Pass<E>& pass) const {
    for (const Work& work : works_) TRY(work(pass));
    return {};
  }

 private:
  gpu::BufferView memory_;
  std::size_t align_;
  Carver place_;
  gpu::StreamView stream_;
  std::vector<Work> works_;
};

/// `rows` as the weights' half of the pass's backward will find them, if it is deferred: a copy, unless they
/// are `own`, which stay.
template <class E>
const E* kept_for_weights(const Pass<E>& pass, const E* rows, std::size_t elements,
                          const std::type_identity_t<E>* own = nullptr) {
  return pass.later == nullptr || rows == own ? rows : pass.later->keep(rows, elements);
}

/// Where to compute `count` elements that the weights' half of the pass's backward reads: in `scratch`,
/// unless that half is deferred.
template <class E>
E* place_for_weights(const Pass<E>& pass, E* scratch, std::size_t count) {
  return pass.later == nullptr ? scratch : pass.later->take(count);
}

template <class E, class Add>
core::Result<void> add_now(const Pass<E>& pass, std::size_t parameter, const Add& add) {
  if constexpr (std::is_void_v<decltype(add(pass))>) {
    add(pass);
  } else {
    TRY(add(pass));
  }
  pass.ready(parameter);
  return {};
}

/// Adds to a parameter's gradient, which is then complete, by `add(pass)`, which may return a result, after
/// pass.use(); if the weights' half of backward is deferred, later and with the pass of that time. What `add`
/// refers to must still exist then.
template <class E, class Add>
core::Result<void> add_to_gradient(const Pass<E>& pass, std::size_t parameter, Add add) {
  if (pass.later == nullptr) return add_now(pass, parameter, add);
  pass.later->add([=](const Pass<E>& at) -> core::Result<void> {
    TRY(at.use(parameter));
    return add_now(at, parameter, add);
  });
  return {};
}

/// The same for a parameter whose values the other half does not read.
template <class E, class Add>
core::Result<void> use_and_add_to_gradient(const Pass<E>& pass, std::size_t parameter, Add add) {
  if (pass.later == nullptr) TRY(pass.use(parameter));
  return add_to_gradient(pass, parameter, std::move(add));
}

// N rows, C width, F feed_forward, G of the shared expert, R rows that experts compute with, Q the width of
// queries, K of keys.

template <class E>
void plan_kept_of_experts(Carver& carver, const ExpertConfig& config, std::size_t N, std::size_t C) {
  const std::size_t R = config.most_rows(N), G = config.shared_feed_forward;
  carver.take<E>(R, C);  // with respect to the experts' output
  for (int matrix = 0; matrix < 2; ++matrix) carver.take<E>(R, config.feed_forward);
  if (config.ranks == 1) carver.take<E>(N * config.sent(), C);  // the gathered tokens
  carver.take<E>(N, config.count);
  if (G == 0) return;
  carver.take<E>(N, C);
  for (int matrix = 0; matrix < 2; ++matrix) carver.take<E>(N, G);
  if (config.shared_gate) carver.take<E>(N);
}

/// Memory of a WeightWork for a microbatch in a part of the model. A rank has own_rows of the residual
/// stream, fewer than all with `sequence` parallelism; then gathered rows are kept too.
template <class E>
std::size_t kept_bytes(const ModelConfig& config, std::size_t N, std::size_t own_rows, ModelPart part,
                       bool sequence, std::size_t align) {
  const std::size_t C = config.width, F = config.feed_forward;
  const std::size_t Q = config.query_width(), K = config.key_width();
  Carver carver(nullptr, align);
  for (std::size_t layer = part.first; layer < part.end; ++layer) {
    carver.take<E>(N, C);  // with respect to attention's output, then to its projections
    carver.take<E>(N, Q);
    for (int side = 0; side < 2; ++side) carver.take<E>(N, K);
    if (config.query_key_norm) {
      carver.take<E>(N, Q);
      carver.take<E>(N, K);
    }
    if (config.attention_output_bias) carver.take<E>(own_rows, C);
    for (int norm = 0; norm < 2; ++norm) {
      carver.take<E>(own_rows, C);
      if (sequence) carver.take<E>(N, C);  // its gathered output
    }
    if (config.experts.in_layer(layer)) {
      plan_kept_of_experts<E>(carver, config.experts, N, C);
      continue;
    }
    carver.take<E>(N, C);
    carver.take<E>(N, F);
    if (config.activation == Activation::swiglu) carver.take<E>(N, F);
  }
  if (part.has_begin()) carver.take<E>(N, C);
  if (part.has_end(config)) {
    carver.take<E>(own_rows, C);
    if (sequence && !config.tied_embeddings) carver.take<E>(N, C);
  }
  return carver.bytes();
}

/// Errc::unavailable for split backwards of recomputed activations.
core::Result<void> check_split(bool is_split, Keep keep);

}  // namespace troupe::apps::gpt
