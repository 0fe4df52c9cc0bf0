#include "apps/gpt/cuda/cuda_attention.hpp"

#include <algorithm>

#include "apps/gpt/kernels/kernels.hpp"
#include "apps/gpt/kernels/typed_elements.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// For whole sequences: those of one rank.
template <class E>
cuda::Attention<E> attention_of(const CudaContext& context, const CudaBlockActivations<E>& block) {
  const ModelConfig& config = context.config;
  return {.batch = context.shape.batch,
          .length = context.shape.length,
          .heads = config.heads,
          .head_size = config.head_size(),
          .key_heads = config.key_heads(),
          .query = block.query,
          .key = block.key,
          .value = block.value,
          .y = block.attention,
          .log_sum = block.log_sum};
}

cuda::PieceRows piece_rows(const CudaContext& context, std::size_t width) {
  return {context.sequences->group->size(), context.shape.batch, context.shape.length, width};
}

DeviceTensorGroup::Counts counts_of(const cuda::PieceRows& rows) {
  return DeviceTensorGroup::Counts(rows.members, rows.batch * rows.length * rows.width);
}

/// With the keys and values of all members instead of the block's own.
template <class E>
Result<cuda::Attention<E>> with_all_keys(const CudaContext& context, cuda::Attention<E> attention) {
  const auto& sequences = *context.sequences;
  const std::size_t members = sequences.group->size(), index = sequences.group->index();
  const std::size_t piece = attention.length / 2, width = context.config.key_width();
  attention.rows = {.positions = members * attention.length,
                    .lower = index * piece,
                    .upper = (2 * members - 1 - index) * piece};
  TRY(gather_rows(context, width, attention.key, rows_of<E>(sequences.key)));
  TRY(gather_rows(context, width, attention.value, rows_of<E>(sequences.value)));
  attention.key = rows_of<E>(sequences.key);
  attention.value = rows_of<E>(sequences.value);
  return attention;
}

/// own (B, L, K, D) = the sum over all members of their values at its positions in d_all (B, T, K, D).
/// `scratch` has the same size.
template <class E>
Result<void> scatter_sum(const CudaContext& context, std::byte* d_all, E* own, std::byte* scratch) {
  const auto rows = piece_rows(context, context.config.key_width());
  E* exchanged = rows_of<E>(context.sequences->exchanged);
  context.run("pieces", [&](cudaStream_t stream) {
    return cuda::rows_by_member<E>(rows, rows_of<E>(d_all), exchanged, stream);
  });
  const auto counts = counts_of(rows);
  const std::size_t all = rows.members * counts.front();
  return context.sequences->group->scatter_sum(elements(static_cast<const E*>(exchanged), all),
                                               elements(own, counts.front()), counts,
                                               {scratch, all * sizeof(E)});
}

}  // namespace

template <class E>
CudaContextParallel carve_cuda_context(ByteCarver& carver, std::size_t members, std::size_t rows,
                                       const ModelConfig& config) {
  const std::size_t all = members * rows, experts = config.experts.count * sizeof(float);
  const std::size_t keys = config.key_width() * sizeof(E);
  const auto take = [&](std::size_t bytes) { return carver.take<std::byte>(all, bytes); };
  CudaContextParallel sequences;
  sequences.key = take(keys);
  sequences.value = take(keys);
  sequences.d_key = take(keys);
  sequences.d_value = take(keys);
  sequences.exchanged = take(std::max(keys, experts));
  if (experts > 0) sequences.logits = carver.take<float>(all, config.experts.count);
  return sequences;
}

template <class E>
Result<void> gather_rows(const CudaContext& context, std::size_t width, const E* own, E* all) {
  const auto rows = piece_rows(context, width);
  const auto counts = counts_of(rows);
  E* exchanged = rows_of<E>(context.sequences->exchanged);
  TRY(context.sequences->group->gather(elements(own, counts.front()),
                                       elements(exchanged, rows.members * counts.front()), counts));
  context.run("pieces",
              [&](cudaStream_t stream) { return cuda::rows_by_position<E>(rows, exchanged, all, stream); });
  return {};
}

template <class E>
Result<void> attention_forward(const CudaContext& context, const CudaBlockActivations<E>& block) {
  auto attention = attention_of(context, block);
  if (context.sequences != nullptr) attention = TRY(with_all_keys(context, attention));
  context.run("attention", [&](cudaStream_t stream) { return cuda::attention_forward(attention, stream); });
  return {};
}

template <class E>
Result<void> attention_backward(const CudaContext& context, const CudaBlockActivations<E>& block,
                                const CudaGradientScratch<E>& d) {
  auto attention = attention_of(context, block);
  cuda::AttentionGradients<E> gradients{d.attention, d.query, d.key, d.value, d.delta};
  const auto* sequences = context.sequences;
  if (sequences != nullptr) {
    attention = TRY(with_all_keys(context, attention));
    gradients.key = rows_of<E>(sequences->d_key);
    gradients.value = rows_of<E>(sequences->d_value);
  }
  context.run("attention backward",
              [&](cudaStream_t stream) { return cuda::attention_backward<E>(attention, gradients, stream); });
  if (sequences == nullptr) return {};
  // Backward has read the keys and values of all members.
  TRY(scatter_sum(context, sequences->d_key, d.key, sequences->key));
  return scatter_sum(context, sequences->d_value, d.value, sequences->value);
}

template CudaContextParallel carve_cuda_context<float>(ByteCarver&, std::size_t, std::size_t,
                                                       const ModelConfig&);
template CudaContextParallel carve_cuda_context<Bf16>(ByteCarver&, std::size_t, std::size_t,
                                                      const ModelConfig&);
template Result<void> gather_rows<float>(const CudaContext&, std::size_t, const float*, float*);
template Result<void> attention_forward<float>(const CudaContext&, const CudaBlockActivations<float>&);
template Result<void> attention_forward<Bf16>(const CudaContext&, const CudaBlockActivations<Bf16>&);
template Result<void> attention_backward<float>(const CudaContext&, const CudaBlockActivations<float>&,
                                                const CudaGradientScratch<float>&);
template Result<void> attention_backward<Bf16>(const CudaContext&, const CudaBlockActivations<Bf16>&,
                                               const CudaGradientScratch<Bf16>&);

}  // namespace troupe::apps::gpt
