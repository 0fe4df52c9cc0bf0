#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// A range of device memory as elements of a dtype, not owned. Trivially copyable.
struct Elements {
  BufferView view;
  core::DType dtype = core::DType::f32;

  std::size_t count() const { return view.bytes / core::size_of(dtype); }
  Elements part(std::size_t first, std::size_t length) const {
    const std::size_t size = core::size_of(dtype);
    return {view.subview(first * size, length * size), dtype};
  }
};

/// Like Elements, but read-only.
struct ConstElements {
  ConstBufferView view;
  core::DType dtype = core::DType::f32;

  ConstElements() = default;
  ConstElements(ConstBufferView range, core::DType type) : view(range), dtype(type) {}
  ConstElements(Elements elements) : view(elements.view), dtype(elements.dtype) {}  // NOLINT: all may be read

  std::size_t count() const { return view.bytes / core::size_of(dtype); }
  ConstElements part(std::size_t first, std::size_t length) const {
    const std::size_t size = core::size_of(dtype);
    return {view.subview(first * size, length * size), dtype};
  }
};

}  // namespace troupe::gpu
