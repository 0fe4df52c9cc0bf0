#pragma once

#include <cstddef>
#include <span>

#include "core/result.hpp"
#include "gpu/device.hpp"
#include "gpu/elements.hpp"

namespace troupe::apps::gpt {

/// Memory that a stage computes in, and operations on it: enqueued on the compute stream, or, if there is
/// none (null), done immediately in host memory. The device must outlive it.
class StageMemory {
 public:
  explicit StageMemory(gpu::Device& device, gpu::StreamView compute = nullptr)
      : device_(&device), compute_(compute) {}

  /// From now on, for a device that computes on a stream.
  void use(gpu::StreamView compute) { compute_ = compute; }
  gpu::StreamView compute() const { return compute_; }

  bool is_on_device() const { return compute_ != nullptr; }

  core::Result<gpu::Buffer> allocate(std::size_t bytes) const { return device_->allocate(bytes); }
  core::Result<gpu::Buffer> allocate_staging(std::size_t bytes) const {
    return device_->allocate_staging(bytes);
  }
  void copy(gpu::ConstBufferView source, gpu::BufferView destination) const;
  void zero(gpu::BufferView destination) const;
  /// destination += source, in f32.
  void add(gpu::ConstBufferView source, gpu::BufferView destination) const;

  /// Waits for all operations.
  core::Result<void> settle() const;
  /// To and from host memory; these wait.
  core::Result<void> read(gpu::ConstBufferView source, std::span<std::byte> destination) const;
  core::Result<void> write(std::span<const std::byte> source, gpu::BufferView destination) const;

 private:
  gpu::Device* device_;
  gpu::StreamView compute_;
};

}  // namespace troupe::apps::gpt
