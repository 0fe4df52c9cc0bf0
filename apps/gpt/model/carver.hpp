#pragma once

#include <cstddef>
#include <limits>

namespace troupe::apps::gpt {

/// Hands out consecutive pieces of one allocation, each aligned to the same number of bytes. Without memory
/// (base null) it hands out null and counts, so the same code plans and places. The count saturates instead
/// of wrapping.
class Carver {
 public:
  Carver(std::byte* base, std::size_t align) : base_(base), align_(align) {}

  template <class T>
  T* take(std::size_t rows, std::size_t columns = 1) {
    auto* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, sizeof(T), &bytes) ||
        __builtin_add_overflow(bytes, align_ - 1, &bytes) ||
        __builtin_add_overflow(used_, bytes / align_ * align_, &used_)) {
      used_ = std::numeric_limits<std::size_t>::max() / 2;
    }
    return piece;
  }

  std::size_t bytes() const { return used_; }

 private:
  std::byte* base_;
  std::size_t align_;
  std::size_t used_ = 0;
};

}  // namespace troupe::apps::gpt
