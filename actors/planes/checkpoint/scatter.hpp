#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/planes/checkpoint/upload.hpp"
#include "core/boxes/box.hpp"
#include "core/checkpoint/load_plan.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Copies the bytes of a shard, which arrive piece by piece from its beginning to its end, to where its
/// targets want them, converted to their dtypes. Pieces may be left out.
class ShardScatter {
 public:
  /// `memory[i]` is that of targets[i], row-major. Both are used as long as pieces arrive.
  ShardScatter(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
               std::span<const std::span<std::byte>> memory);

  /// Whether a target wants anything before byte `end` of the shard that it has not received.
  bool wants_before(std::uint64_t end) const;
  /// Bytes from `begin` on, whole elements. They go through `upload`, as described at Upload::put(), unless
  /// it is null; with null nothing can fail.
  core::Result<void> take(std::uint64_t begin, std::span<const std::byte> bytes, Upload* upload);

 private:
  /// Runs of one copy, and how many are done.
  struct Copy {
    std::vector<core::CopyRun> runs;  ///< in elements, ascending
    std::size_t next = 0;
    core::DType dtype{};
    std::byte* memory = nullptr;
  };
  core::Result<void> carry_out(Copy& copy, std::int64_t begin, std::int64_t end, const std::byte* bytes,
                               Upload* upload) const;

  core::DType dtype_;
  std::vector<Copy> copies_;
};

/// Where a target holds all of a shard as it is stored and no other target wants any of it; otherwise empty.
std::span<std::byte> place_of_whole(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                    std::span<const std::span<std::byte>> memory);

/// Bytes of a shard from `begin` on that are contiguous in a target, as they are stored.
struct StraightRun {
  std::uint64_t begin = 0;
  std::span<std::byte> memory;
};

/// What the targets want of a shard, if all of it is long runs that need no conversion; otherwise empty.
std::vector<StraightRun> straight_runs(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                       std::span<const std::span<std::byte>> memory);

}  // namespace troupe::actors
