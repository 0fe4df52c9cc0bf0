#include "apps/gpt/cuda/cuda_tensor.hpp"

#include <algorithm>

#include "apps/gpt/cuda/cuda_projection.hpp"
#include "apps/gpt/kernels/typed_elements.hpp"
#include "apps/gpt/model/group.hpp"
#include "apps/gpt/model/rows.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::apps::gpt {

using core::DType;
using core::Result;

namespace {

DeviceTensorGroup::Counts counts_of_rows(const CudaContext& context) {
  return even_counts(context.tensor->group->size(), context.shape.rows(), context.config.width);
}

}  // namespace

template <class E>
CudaTensorParallel carve_cuda_tensor(ByteCarver& carver, std::size_t members, bool sequence, std::size_t rows,
                                     const ModelConfig& config) {
  const std::size_t width = config.width;
  CudaTensorParallel tensor;
  tensor.sequence = sequence;
  const std::size_t most = most_own_rows(rows, members);
  if (sequence) {
    tensor.gathered = carver.take<std::byte>(rows, width * sizeof(E));
    tensor.own = carver.take<std::byte>(most, width * sizeof(E));
    if (config.experts.count > 0) tensor.again = carver.take<std::byte>(rows, width * sizeof(E));
  }
  tensor.vocabulary = {carver.take<float>(rows), carver.take<float>(2, rows)};
  const std::size_t bytes =
      std::max(members * most * width * sizeof(E), sum_scratch_bytes(members, 2 * rows, DType::f32));
  tensor.scratch = {carver.take<std::byte>(bytes), bytes};
  return tensor;
}

std::size_t own_rows(const CudaContext& context) {
  const std::size_t rows = context.shape.rows();
  if (context.tensor == nullptr || !context.tensor->sequence) return rows;
  return even_counts(context.tensor->group->size(), rows)[context.tensor->group->index()];
}

template <class E>
Result<const E*> all_rows(const CudaContext& context, const E* own) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr || !tensor->sequence) return own;
  const auto counts = counts_of_rows(context);
  E* all = rows_of<E>(tensor->gathered);
  TRY(tensor->group->gather(elements(own, counts[tensor->group->index()]),
                            elements(all, context.shape.rows() * context.config.width), counts));
  return all;
}

template <class E>
Result<const E*> summed_rows(const CudaContext& context, E* partial) {
  const auto* tensor = context.tensor;
  if (tensor == nullptr) return partial;
  const auto values = elements(partial, context.shape.rows() * context.config.width);
  if (!tensor->sequence) {
    TRY(tensor->group->sum(values, tensor->scratch));
    return partial;
  }
  const auto counts = counts_of_rows(context);
  E* own = rows_of<E>(tensor->own);
  TRY(tensor->group->scatter_sum(values, elements(own, counts[tensor->group->index()]), counts,
                                 tensor->scratch));
  return own;
}

template <class E>
Result<void> add_summed_rows(const CudaContext& context, E* partial, E* residual) {
  const E* sum = TRY(summed_rows(context, partial));
  const std::size_t count = own_rows(context) * context.config.width;
  if (count > 0) gpu::accumulate(elements(sum, count), elements(residual, count), context.stream);
  return {};
}

template <class E>
Result<void> project_into_residual(const CudaContext& context, const CudaPass<E>& pass, std::size_t in,
                                   std::size_t weight, const E* x, E* residual) {
  const std::size_t N = context.shape.rows(), C = context.config.width;
  if (context.tensor == nullptr)
    return project(context, pass, {N, in, C}, weight, x, residual, Write::accumulate);
  E* partial = rows_of<E>(context.tensor->partial);
  TRY(project(context, pass, {N, in, C}, weight, x, partial));
  return add_summed_rows(context, partial, residual);
}

template <class E>
Result<void> vocabulary_embedding_forward(const CudaContext& context, const std::int32_t* tokens,
                                          const E* table, E* x) {
  E* partial = rows_of<E>(context.tensor->partial);
  context.run("embedding", [&](cudaStream_t stream) {
    return cuda::embedding_forward(tokens, context.shape.rows(), context.config.width, table, partial,
                                   stream);
  });
  const E* sum = TRY(summed_rows(context, partial));
  const std::size_t count = own_rows(context) * context.config.width;
  if (count > 0) gpu::copy(elements(sum, count).view, elements(x, count).view, context.stream);
  return {};
}

template <class E>
Result<void> vocabulary_cross_entropy_forward(const CudaContext& context,
                                              const cuda::CrossEntropy<E>& entropy, double* loss) {
  const auto& [group, sequence, gathered, partial, own, again, sums, scratch] = *context.tensor;
  context.run("greatest logits",
              [&](cudaStream_t stream) { return cuda::vocabulary_greatest(entropy, sums, stream); });
  TRY(group->max(elements(sums.most, entropy.rows)));
  context.run("cross entropy",
              [&](cudaStream_t stream) { return cuda::vocabulary_sums(entropy, sums, stream); });
  TRY(group->sum(elements(sums.sums, 2 * entropy.rows), scratch));
  context.run("losses",
              [&](cudaStream_t stream) { return cuda::vocabulary_losses(entropy, sums, loss, stream); });
  return {};
}

Result<float*> all_next_logits(const CudaContext& context, const float* own, float* all) {
  auto& group = *context.tensor->group;
  const std::size_t part = context.config.vocabulary;
  TRY(group.gather(elements(own, part), elements(all, group.size() * part),
                   DeviceTensorGroup::Counts(group.size(), part)));
  return all;
}

template CudaTensorParallel carve_cuda_tensor<float>(ByteCarver&, std::size_t, bool, std::size_t,
                                                     const ModelConfig&);
template CudaTensorParallel carve_cuda_tensor<Bf16>(ByteCarver&, std::size_t, bool, std::size_t,
                                                    const ModelConfig&);
template Result<void> add_summed_rows<float>(const CudaContext&, float*, float*);
template Result<void> add_summed_rows<Bf16>(const CudaContext&, Bf16*, Bf16*);
template Result<const float*> all_rows<float>(const CudaContext&, const float*);
template Result<const Bf16*> all_rows<Bf16>(const CudaContext&, const Bf16*);
template Result<const float*> summed_rows<float>(const CudaContext&, float*);
template Result<const Bf16*> summed_rows<Bf16>(const CudaContext&, Bf16*);
template Result<void> project_into_residual<float>(const CudaContext&, const CudaPass<float>&, std::size_t,
                                                   std::size_t, const float*, float*);
template Result<void> project_into_residual<Bf16>(const CudaContext&, const CudaPass<Bf16>&, std::size_t,
                                                  std::size_t, const Bf16*, Bf16*);
template Result<void> vocabulary_embedding_forward<float>(const CudaContext&, const std::int32_t*,
                                                          const float*, float*);
template Result<void> vocabulary_embedding_forward<Bf16>(const CudaContext&, const std::int32_t*, const Bf16*,
                                                         Bf16*);
template Result<void> vocabulary_cross_entropy_forward<float>(const CudaContext&,
                                                              const cuda::CrossEntropy<float>&, double*);
template Result<void> vocabulary_cross_entropy_forward<Bf16>(const CudaContext&,
                                                             const cuda::CrossEntropy<Bf16>&, double*);

}  // namespace troupe::apps::gpt
