#include "apps/gpt/cuda/cuda_attention.hpp"

#include "apps/gpt/cuda/kernels.hpp"
#include "apps/gpt/cuda/typed_elements.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// Of whole sequences: those of one rank.
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

/// The keys and values of all ranks that share each sequence.
template <class E>
class AllKeys {
 public:
  explicit AllKeys(const CudaContext& context)
      : context_(context),
        sequences_(*context.sequences),
        rows_{sequences_.group->size(), context.shape.batch, context.shape.length,
              context.config.key_width()},
        counts_(rows_.members, rows_.batch * rows_.length * rows_.width) {}

  /// With the keys and values of all in place of the block's own.
  Result<cuda::Attention<E>> gathered(cuda::Attention<E> attention) const {
    const std::size_t index = sequences_.group->index(), piece = rows_.length / 2;
    attention.rows = {.positions = rows_.members * rows_.length,
                      .lower = index * piece,
                      .upper = (2 * rows_.members - 1 - index) * piece};
    attention.key = TRY(gather(attention.key, rows_of<E>(sequences_.key)));
    attention.value = TRY(gather(attention.value, rows_of<E>(sequences_.value)));
    return attention;
  }

  /// own (B, L, K, D) = the sum of what all members have for its positions in d_all (B, T, K, D). `all`,
  /// which backward has read, is scratch now.
  Result<void> scatter_sum(std::byte* d_all, E* own, std::byte* all) const {
    E* exchanged = rows_of<E>(sequences_.exchanged);
    context_.run("pieces", [&](cudaStream_t stream) {
      return cuda::rows_by_member<E>(rows_, rows_of<E>(d_all), exchanged, stream);
    });
    const std::size_t count = counts_.front(), all_count = rows_.members * count;
    return sequences_.group->scatter_sum(elements<E>(exchanged, all_count), elements(own, count), counts_,
                                         {all, all_count * sizeof(E)});
  }

 private:
  Result<const E*> gather(const E* own, E* all) const {
    E* exchanged = rows_of<E>(sequences_.exchanged);
    const std::size_t count = counts_.front();
    TRY(sequences_.group->gather(elements(own, count), elements(exchanged, rows_.members * count), counts_));
    context_.run("pieces", [&](cudaStream_t stream) {
      return cuda::rows_by_position<E>(rows_, exchanged, all, stream);
    });
    return all;
  }

  const CudaContext& context_;
  const CudaContextParallel& sequences_;
  cuda::PieceRows rows_;
  DeviceTensorGroup::Counts counts_;
};

}  // namespace

template <class E>
CudaContextParallel carve_cuda_context(ByteCarver& carver, std::size_t members, std::size_t rows,
                                       std::size_t key_width) {
  const auto take = [&] { return carver.take<std::byte>(members * rows, key_width * sizeof(E)); };
  CudaContextParallel sequences;
  sequences.key = take();
  sequences.value = take();
  sequences.d_key = take();
  sequences.d_value = take();
  sequences.exchanged = take();
  return sequences;
}

template <class E>
Result<void> attention_forward(const CudaContext& context, const CudaBlockActivations<E>& block) {
  auto attention = attention_of(context, block);
  if (context.sequences != nullptr) attention = TRY(AllKeys<E>(context).gathered(attention));
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
    attention = TRY(AllKeys<E>(context).gathered(attention));
    gradients.key = rows_of<E>(sequences->d_key);
    gradients.value = rows_of<E>(sequences->d_value);
  }
  context.run("attention backward",
              [&](cudaStream_t stream) { return cuda::attention_backward<E>(attention, gradients, stream); });
  if (sequences == nullptr) return {};
  const AllKeys<E> keys(context);
  TRY(keys.scatter_sum(sequences->d_key, d.key, sequences->key));
  return keys.scatter_sum(sequences->d_value, d.value, sequences->value);
}

template CudaContextParallel carve_cuda_context<float>(ByteCarver&, std::size_t, std::size_t, std::size_t);
template CudaContextParallel carve_cuda_context<Bf16>(ByteCarver&, std::size_t, std::size_t, std::size_t);
template Result<void> attention_forward<float>(const CudaContext&, const CudaBlockActivations<float>&);
template Result<void> attention_forward<Bf16>(const CudaContext&, const CudaBlockActivations<Bf16>&);
template Result<void> attention_backward<float>(const CudaContext&, const CudaBlockActivations<float>&,
                                                const CudaGradientScratch<float>&);
template Result<void> attention_backward<Bf16>(const CudaContext&, const CudaBlockActivations<Bf16>&,
                                               const CudaGradientScratch<Bf16>&);

}  // namespace troupe::apps::gpt
