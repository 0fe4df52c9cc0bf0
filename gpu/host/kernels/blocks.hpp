#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "gpu/elements.hpp"
#include "gpu/host/kernels/convert.hpp"

namespace troupe::gpu {

/// Kernels work in blocks that stay in the first-level cache between widening, arithmetic and rounding.
inline constexpr std::size_t kBlockElements = 512;
using Block = std::array<float, kBlockElements>;

/// Calls body(first, length) for consecutive blocks of [0, count).
template <class Body>
void for_each_block(std::size_t count, Body body) {
  for (std::size_t first = 0; first < count; first += kBlockElements) {
    body(first, std::min(kBlockElements, count - first));
  }
}

/// Reads ranges of elements as fp32: fp32 in place, narrower types through a block of the caller's.
class Reader {
 public:
  explicit Reader(ConstElements elements)
      : data_(elements.view.data),
        element_bytes_(core::size_of(elements.dtype)),
        dtype_(elements.dtype),
        converter_(converter_of(elements.dtype)) {}

  const float* read(std::size_t first, std::size_t length, float* block) const {
    if (dtype_ == core::DType::f32) return reinterpret_cast<const float*>(at(first));
    converter_.widen(at(first), block, length);
    return block;
  }

  bool has_dtype_of(const Reader& other) const { return dtype_ == other.dtype_; }

  /// sum = these elements from `first` on + those of `other`, which has the same dtype, from `others` on.
  void add(std::size_t first, const Reader& other, std::size_t others, std::size_t length, float* sum) const {
    converter_.add(at(first), other.at(others), sum, length);
  }

 private:
  const std::byte* at(std::size_t first) const { return data_ + first * element_bytes_; }

  const std::byte* data_;
  std::size_t element_bytes_;
  core::DType dtype_;
  Converter converter_;
};

/// Writes ranges of elements from fp32. The caller fills target(), then passes it to commit(): fp32 is
/// written in place, narrower types through a block of the caller's.
class Writer {
 public:
  explicit Writer(Elements elements)
      : data_(elements.view.data),
        element_bytes_(core::size_of(elements.dtype)),
        narrow_(elements.dtype == core::DType::f32 ? nullptr : converter_of(elements.dtype).narrow) {}

  float* target(std::size_t first, float* block) const {
    return narrow_ == nullptr ? reinterpret_cast<float*>(data_) + first : block;
  }
  void commit(std::size_t first, std::size_t length, const float* filled) const {
    if (narrow_ != nullptr) narrow_(filled, data_ + first * element_bytes_, length);
  }

 private:
  std::byte* data_;
  std::size_t element_bytes_;
  decltype(Converter::narrow) narrow_;
};

}  // namespace troupe::gpu
