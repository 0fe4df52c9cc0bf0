#pragma once

#include <cstddef>

namespace troupe::apps::gpt {

// N rows, C width.

/// y (N, C) += bias (C), in every row.
template <class T>
void bias_forward(std::size_t rows, std::size_t width, const T* bias, T* y);

/// d_bias (C) += the sum of the rows of d_y (N, C).
template <class T>
void bias_backward(std::size_t rows, std::size_t width, const T* d_y, T* d_bias);

}  // namespace troupe::apps::gpt
