#include "apps/gpt/model/rows.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

template <class T>
typename TensorGroup<T>::Counts counts_of_rows(const TensorGroup<T>& group, std::size_t rows,
                                               std::size_t width) {
  return even_counts(group.size(), rows, width);
}

}  // namespace

std::size_t most_own_rows(std::size_t rows, std::size_t size) {
  return (rows + size - 1) / size;
}

template <class T>
std::size_t own_rows(const TensorParallel<T>* tensor, std::size_t rows) {
  if (tensor == nullptr || !tensor->sequence) return rows;
  return counts_of_rows(*tensor->group, rows, 1)[tensor->group->index()];
}

template <class T>
Result<const T*> all_rows(const TensorParallel<T>* tensor, std::size_t rows, std::size_t width,
                          const T* own) {
  if (tensor == nullptr || !tensor->sequence) return own;
  const auto counts = counts_of_rows(*tensor->group, rows, width);
  TRY(tensor->group->gather({own, counts[tensor->group->index()]}, {tensor->gathered, rows * width}, counts));
  return tensor->gathered;
}

template <class T>
Result<const T*> summed_rows(const TensorParallel<T>* tensor, std::size_t rows, std::size_t width,
                             T* partial) {
  if (tensor == nullptr) return partial;
  if (!tensor->sequence) {
    TRY(tensor->group->sum({partial, rows * width}));
    return partial;
  }
  const auto counts = counts_of_rows(*tensor->group, rows, width);
  TRY(tensor->group->scatter_sum({partial, rows * width}, {tensor->own, counts[tensor->group->index()]},
                                 counts));
  return tensor->own;
}

template <class T>
TensorParallel<T> carve_tensor(Carver<T>& carver, std::size_t members, bool sequence, std::size_t rows,
                               const ModelConfig& config) {
  const std::size_t width = config.width;
  return {.group = nullptr,
          .sequence = sequence,
          .gathered = sequence ? carver.take(rows, width) : nullptr,
          .partial = nullptr,
          .own = sequence ? carver.take(most_own_rows(rows, members), width) : nullptr,
          .again = sequence && config.experts.count > 0 ? carver.take(rows, width) : nullptr};
}

template std::size_t own_rows<float>(const TensorParallel<float>*, std::size_t);
template std::size_t own_rows<double>(const TensorParallel<double>*, std::size_t);
template Result<const float*> all_rows<float>(const TensorParallel<float>*, std::size_t, std::size_t,
                                              const float*);
template Result<const double*> all_rows<double>(const TensorParallel<double>*, std::size_t, std::size_t,
                                                const double*);
template Result<const float*> summed_rows<float>(const TensorParallel<float>*, std::size_t, std::size_t,
                                                 float*);
template Result<const double*> summed_rows<double>(const TensorParallel<double>*, std::size_t, std::size_t,
                                                   double*);
template TensorParallel<float> carve_tensor<float>(Carver<float>&, std::size_t, bool, std::size_t,
                                                   const ModelConfig&);
template TensorParallel<double> carve_tensor<double>(Carver<double>&, std::size_t, bool, std::size_t,
                                                     const ModelConfig&);

}  // namespace troupe::apps::gpt
