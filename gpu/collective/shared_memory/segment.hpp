#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "core/result.hpp"
#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// A named piece of shared memory mapped into this process. Owns the mapping, not the name. Move only.
class SharedSegment {
 public:
  /// Makes a new one of `bytes`, zeroed; its memory is reserved, so that no later access can fail.
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

/// The name of a group's segment: "/troupe-<job>-<epoch>-<group>".
std::string segment_name(std::string_view job, std::uint64_t epoch, std::string_view group);

/// Removes what groups of a job left in /dev/shm: a job that was killed while it set a group up leaves its
/// segment. Call it when no process of the job is alive. Returns the number removed.
int remove_leftovers(std::string_view job);

}  // namespace troupe::gpu
