#pragma once

#include <cstddef>
#include <type_traits>

#include "apps/gpt/kernels/element.cuh"
#include "core/dtype.hpp"
#include "gpu/elements.hpp"

namespace troupe::apps::gpt {

// Tensors of a kernel's type E, in the form that collectives take.

template <class E>
inline constexpr core::DType kType = std::is_same_v<E, float> ? core::DType::f32 : core::DType::bf16;

template <class E>
gpu::Elements elements(E* first, std::size_t count) {
  return {{reinterpret_cast<std::byte*>(first), count * sizeof(E)}, kType<E>};
}

template <class E>
gpu::ConstElements elements(const E* first, std::size_t count) {
  return {{reinterpret_cast<const std::byte*>(first), count * sizeof(E)}, kType<E>};
}

template <class E>
E* rows_of(std::byte* memory) {
  return reinterpret_cast<E*>(memory);
}

}  // namespace troupe::apps::gpt
