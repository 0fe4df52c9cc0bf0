#include "apps/gpt/layers/embedding.hpp"

#include <algorithm>

namespace troupe::apps::gpt {

template <class T>
void embedding_forward(std::span<const std::int32_t> tokens, std::size_t width, const T* table, T* x) {
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    std::copy_n(table + static_cast<std::size_t>(tokens[n]) * width, width, x + n * width);
  }
}

template <class T>
void embedding_backward(std::span<const std::int32_t> tokens, std::size_t width, const T* d_x, T* d_table) {
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    T* row = d_table + static_cast<std::size_t>(tokens[n]) * width;
    for (std::size_t c = 0; c < width; ++c) row[c] += d_x[n * width + c];
  }
}

template void embedding_forward<float>(std::span<const std::int32_t>, std::size_t, const float*, float*);
template void embedding_forward<double>(std::span<const std::int32_t>, std::size_t, const double*, double*);
template void embedding_backward<float>(std::span<const std::int32_t>, std::size_t, const float*, float*);
template void embedding_backward<double>(std::span<const std::int32_t>, std::size_t, const double*, double*);

}  // namespace troupe::apps::gpt
