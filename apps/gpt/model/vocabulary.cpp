#include "apps/gpt/model/vocabulary.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/layers/vector_math.hpp"
#include "apps/gpt/model/tree.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// The token's row in a member's part, if it has it.
std::optional<std::size_t> row_of(std::int32_t token, std::size_t index, std::size_t part) {
  const auto first = static_cast<std::int64_t>(index * part);
  if (token < first || token >= first + static_cast<std::int64_t>(part)) return std::nullopt;
  return static_cast<std::size_t>(token - first);
}

/// The greatest value of each row over all members.
template <class T>
Result<std::vector<T>> greatest_of_rows(TensorGroup<T>* group, std::size_t rows, std::size_t part,
                                        const T* logits) {
  std::vector<T> most(rows);
  for (std::size_t n = 0; n < rows; ++n) most[n] = largest(part, logits + n * part);
  if (group != nullptr) TRY(group->max(most));
  return most;
}

}  // namespace

template <class T>
void vocabulary_embedding_forward(std::span<const std::int32_t> tokens, std::size_t index, std::size_t part,
                                  std::size_t width, const T* table, T* x) {
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    if (const auto row = row_of(tokens[n], index, part)) {
      std::copy_n(table + *row * width, width, x + n * width);
    } else {
      std::fill_n(x + n * width, width, T{0});
    }
  }
}

template <class T>
void vocabulary_embedding_backward(std::span<const std::int32_t> tokens, std::size_t index, std::size_t part,
                                   std::size_t width, const T* d_x, T* d_table) {
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    const auto row = row_of(tokens[n], index, part);
    if (!row) continue;
    for (std::size_t c = 0; c < width; ++c) d_table[*row * width + c] += d_x[n * width + c];
  }
}

template <class T>
Result<double> cross_entropy_forward(TensorGroup<T>* group, std::span<const std::int32_t> targets,
                                     std::size_t part, T* logits, std::optional<std::size_t> divisor,
                                     std::size_t slices) {
  const std::size_t rows = targets.size(), slice = part / slices;
  const std::size_t index = group == nullptr ? 0 : group->index();
  const auto most = TRY(greatest_of_rows(group, rows, part, static_cast<const T*>(logits)));
  // For each slice the sums of exponentials, then the targets' logits minus the greatest.
  std::vector<T> sums(slices * 2 * rows);
  for (std::size_t n = 0; n < rows; ++n) {
    if (targets[n] == kNoTarget) continue;
    T* row = logits + n * part;
    const T greatest = most[n];
    if (const auto target = row_of(targets[n], index, part)) sums[rows + n] = row[*target] - greatest;
    vectorised([=]() __attribute__((always_inline)) {
      for (std::size_t v = 0; v < part; ++v) row[v] = exponential(row[v] - greatest);
    });
    for (std::size_t i = 0; i < slices; ++i)
      sums[i * 2 * rows + n] = ordered_sum<T>(slice, [=](std::size_t v) { return row[i * slice + v]; });
  }
  add_in_tree(slices, 2 * rows, sums.data());
  sums.resize(2 * rows);
  if (group != nullptr) TRY(group->sum(sums));
  double loss = 0;
  for (std::size_t n = 0; n < rows; ++n) {
    if (targets[n] == kNoTarget) continue;
    const T inverse = T{1} / sums[n];
    for (std::size_t v = 0; v < part; ++v) logits[n * part + v] *= inverse;
    loss += std::log(static_cast<double>(sums[n])) - static_cast<double>(sums[rows + n]);
  }
  return loss / static_cast<double>(loss_divisor(targets, divisor));
}

template <class T>
void cross_entropy_backward(std::span<const std::int32_t> targets, std::size_t index, std::size_t part,
                            T* probabilities, T scale, std::optional<std::size_t> divisor) {
  const T share = scale / static_cast<T>(loss_divisor(targets, divisor));
  for (std::size_t n = 0; n < targets.size(); ++n) {
    T* row = probabilities + n * part;
    if (targets[n] == kNoTarget) {
      std::fill_n(row, part, T{0});
      continue;
    }
    if (const auto target = row_of(targets[n], index, part)) row[*target] -= T{1};
    for (std::size_t v = 0; v < part; ++v) row[v] *= share;
  }
}

template decltype(vocabulary_embedding_forward<float>) vocabulary_embedding_forward<float>;
template decltype(vocabulary_embedding_backward<float>) vocabulary_embedding_backward<float>;
template decltype(cross_entropy_forward<float>) cross_entropy_forward<float>;
template decltype(cross_entropy_backward<float>) cross_entropy_backward<float>;
template decltype(vocabulary_embedding_forward<double>) vocabulary_embedding_forward<double>;
template decltype(vocabulary_embedding_backward<double>) vocabulary_embedding_backward<double>;
template decltype(cross_entropy_forward<double>) cross_entropy_forward<double>;
template decltype(cross_entropy_backward<double>) cross_entropy_backward<double>;

}  // namespace troupe::apps::gpt
