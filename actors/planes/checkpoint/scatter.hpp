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

/// Brings the bytes of a shard, which come piece by piece from its beginning to its end, to where its targets
/// want them, converted to their dtypes. Pieces may be left out.
class ShardScatter {
 public:
  /// `memory[i]` is that of targets[i], row-major. Both are used for as long as pieces come.
  ShardScatter(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
               std::span<const std::span<std::byte>> memory);

  /// Whether a target wants anything before byte `end` of the shard that it has not had.
  bool wants_before(std::uint64_t end) const;
  /// Bytes from `begin` on, whole elements. They go through `upload`, as Upload::put() says, unless it is
  /// null; only then can nothing fail.
  core::Result<void> take(std::uint64_t begin, std::span<const std::byte> bytes, Upload* upload);

 private:
  /// Runs of one copy, and how far they are done.
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

/// Where a target holds all of a shard as it is stored, and nobody else wants any of it; else empty.
std::span<std::byte> place_of_whole(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                    std::span<const std::span<std::byte>> memory);

/// Bytes of a shard from `begin` on that a target has together, as they are stored.
struct StraightRun {
  std::uint64_t begin = 0;
  std::span<std::byte> memory;
};

/// What the targets want of a shard, where all of it is long stretches that need no conversion; else nothing.
std::vector<StraightRun> straight_runs(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                       std::span<const std::span<std::byte>> memory);

}  // namespace troupe::actors
