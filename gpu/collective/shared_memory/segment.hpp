#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// A named range of shared memory mapped into this process. Owns the mapping, not the name. Move only.
class SharedSegment {
 public:
  /// Creates a new one of `bytes`, zeroed, for this user only; its memory is reserved, so that no later
  /// access can fail.
  static core::Result<SharedSegment> create(const std::string& name, std::size_t bytes);
  /// Maps an existing one of this size.
  static core::Result<SharedSegment> open(const std::string& name, std::size_t bytes);
  /// Removes the name; mappings remain. Does nothing if the name does not exist.
  static void unlink(const std::string& name) noexcept;

  SharedSegment(SharedSegment&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  BufferView view() const { return view_; }

 private:
  explicit SharedSegment(BufferView view) : view_(view) {}
  static core::Result<SharedSegment> map(int descriptor, const std::string& name, std::size_t bytes);

  BufferView view_;
};

/// An unused and unpredictable name for a group's segment: "/troupe-<job>-<epoch>-<group>-" and 32 random
/// digits. Only processes that are told it find the segment, and none can have taken the name before.
core::Result<std::string> new_segment_name(std::string_view job, std::uint64_t epoch, std::string_view group);

}  // namespace troupe::gpu
