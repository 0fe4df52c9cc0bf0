#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "core/check.hpp"

namespace troupe::gpu {

/// A range of device memory, not owned. Trivially copyable.
struct BufferView {
  std::byte* data = nullptr;
  std::size_t bytes = 0;

  /// The range as elements of T; `bytes` must be a multiple of sizeof(T).
  template <class T>
  std::span<T> as() const {
    TROUPE_CHECK(bytes % sizeof(T) == 0, "a view holds a whole number of elements");
    return {reinterpret_cast<T*>(data), bytes / sizeof(T)};
  }

  BufferView subview(std::size_t offset_bytes, std::size_t length_bytes) const {
    TROUPE_CHECK(offset_bytes <= bytes && length_bytes <= bytes - offset_bytes,
                 "a subview lies inside its view");
    return {data + offset_bytes, length_bytes};
  }
};

/// Like BufferView, but read-only.
struct ConstBufferView {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;

  ConstBufferView() = default;
  ConstBufferView(const std::byte* first, std::size_t length) : data(first), bytes(length) {}
  ConstBufferView(BufferView view) : data(view.data), bytes(view.bytes) {}  // NOLINT: every view may be read

  template <class T>
  std::span<const T> as() const {
    TROUPE_CHECK(bytes % sizeof(T) == 0, "a view holds a whole number of elements");
    return {reinterpret_cast<const T*>(data), bytes / sizeof(T)};
  }

  ConstBufferView subview(std::size_t offset_bytes, std::size_t length_bytes) const {
    TROUPE_CHECK(offset_bytes <= bytes && length_bytes <= bytes - offset_bytes,
                 "a subview lies inside its view");
    return {data + offset_bytes, length_bytes};
  }
};

/// A view of any contiguous range (array, vector, span, string), read-only where its elements are const. What
/// the range refers to must outlive the view: temporaries that own their elements are refused.
template <class Range>
auto view_of(Range&& range) {
  const std::span elements(std::forward<Range>(range));
  if constexpr (std::is_const_v<typename decltype(elements)::element_type>) {
    return ConstBufferView(reinterpret_cast<const std::byte*>(elements.data()), elements.size_bytes());
  } else {
    return BufferView{reinterpret_cast<std::byte*>(elements.data()), elements.size_bytes()};
  }
}

/// Owns a range of device memory, at least 256-byte aligned. Move only. Its device must outlive it, and so
/// must every stream task that touches it: drain the streams first.
class Buffer {
 public:
  using Release = std::function<void(BufferView)>;

  Buffer() = default;
  Buffer(BufferView view, Release release) : view_(view), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept
      : view_(std::exchange(other.view_, {})), release_(std::exchange(other.release_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      view_ = std::exchange(other.view_, {});
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~Buffer() { reset(); }

  BufferView view() const { return view_; }
  std::size_t bytes() const { return view_.bytes; }

 private:
  void reset() {
    if (release_) release_(view_);
    release_ = nullptr;
    view_ = {};
  }

  BufferView view_;
  Release release_;
};

}  // namespace troupe::gpu
