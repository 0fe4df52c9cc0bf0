#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/device.hpp"

namespace troupe::actors {

/// One thread's way to memory that the host cannot access, and back: bytes are put into staging memory, and a
/// stream of the device copies them from there.
class Upload {
 public:
  Upload(gpu::Buffer staging, gpu::Stream stream, std::chrono::nanoseconds deadline);
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  /// For bytes in transit, aligned to 256 bytes. What was passed to put() from it stays as it is until
  /// settle().
  std::span<std::byte> window() const { return window_; }
  /// Copies `count` elements to `to`, converted as by core::convert_elements(). `from` is in window(), or may
  /// change as soon as this returns.
  core::Result<void> put(core::DType from_dtype, const std::byte* from, core::DType to_dtype, std::byte* to,
                         std::size_t count);
  /// The other way: copies these bytes of the device, at most as many as window() has, to its beginning, and
  /// returns that. Errors are those of settle().
  core::Result<std::span<const std::byte>> fetch(std::span<const std::byte> from);
  /// Afterwards everything is in its place. Errc::timeout after the deadline, or the device's failure.
  core::Result<void> settle();

 private:
  std::chrono::nanoseconds deadline_;
  gpu::Buffer staging_;
  std::span<std::byte> window_;   ///< the first half of it
  std::span<std::byte> scratch_;  ///< the other half: elements that put() has converted
  std::size_t scratch_used_ = 0;
  gpu::Stream stream_;  // last: it drains before the memory is freed
};

/// The uploads of a restore, for several threads at once, and all the memory they use. Thread safe.
class UploadPool {
 public:
  /// No budget may be smaller.
  static constexpr std::uint64_t kLeastBytes = 512;

  using Lease = std::unique_ptr<Upload, std::function<void(Upload*)>>;

  /// At most one upload for each of `threads`, which together take at most `budget_bytes` of the device's
  /// staging memory, and no more than is useful. `deadline` applies to one settle(). Errc::out_of_memory.
  /// `device` must outlive it.
  static core::Result<std::unique_ptr<UploadPool>> create(gpu::Device& device, std::uint64_t budget_bytes,
                                                          std::size_t threads,
                                                          std::chrono::nanoseconds deadline);

  /// Waits while all are lent. The lease must end before the pool.
  Lease take();

 private:
  UploadPool() = default;
  void give_back(Upload* upload);

  std::vector<std::unique_ptr<Upload>> uploads_;
  std::mutex mutex_;  // guards free_
  std::condition_variable freed_;
  std::vector<Upload*> free_;
};

/// Fills the memory with zeros: through `uploads`, or directly when they are null.
core::Result<void> clear(std::span<std::byte> memory, UploadPool* uploads);

}  // namespace troupe::actors
