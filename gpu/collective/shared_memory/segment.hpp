#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// A named piece of shared memory mapped into this process. Owns the mapping, not the name. Move only.
class SharedSegment {
 public:
  /// Makes a new one of `bytes`, zeroed, for this user alone; its memory is reserved, so that no later access
  /// can fail.
  static core::Result<SharedSegment> create(const std::string& name, std::size_t bytes);
  /// Maps one that exists and has this size.
  static core::Result<SharedSegment> open(const std::string& name, std::size_t bytes);
  /// Takes the name away; what is mapped stays. Nothing happens when there is none.
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

/// A name for a group's segment that nobody has yet and nobody can foresee: "/troupe-<job>-<epoch>-<group>-"
/// and 32 random digits. Only those who are told it find the segment, and nobody can have taken it before.
core::Result<std::string> new_segment_name(std::string_view job, std::uint64_t epoch, std::string_view group);

}  // namespace troupe::gpu
