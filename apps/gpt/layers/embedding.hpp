#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::apps::gpt {

// N rows, C width, V vocabulary.

/// x[n] = table[tokens[n]]; x is (N, C), table (V, C). Tokens must be in 0..V-1.
template <class T>
void embedding_forward(std::span<const std::int32_t> tokens, std::size_t width, const T* table, T* x);

/// d_table[tokens[n]] += d_x[n], in the order of n.
template <class T>
void embedding_backward(std::span<const std::int32_t> tokens, std::size_t width, const T* d_x, T* d_table);

}  // namespace troupe::apps::gpt
