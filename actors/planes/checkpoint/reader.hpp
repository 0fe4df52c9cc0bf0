#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "actors/planes/checkpoint/upload.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/load_plan.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/result.hpp"

namespace troupe::actors {

struct ReadOptions {
  /// Every shard that is touched is read whole and checked against its hash, and so is its file's header.
  /// Otherwise only what is wanted is read, and damage goes unnoticed.
  bool verify = true;
  std::size_t chunk_bytes = std::size_t{4} << 20;  ///< memory for shards that are not read straight into a
                                                   ///< target
  /// Number of threads that read shards. More than one needs a storage that allows concurrent calls, and
  /// `progress` is then called by all of them.
  std::size_t threads = 1;
  /// For targets in memory that the host cannot access: all bytes go there through these uploads, and use no
  /// host memory but theirs. Null: the host can access it.
  UploadPool* uploads = nullptr;
  std::function<void(std::uint64_t bytes)> progress;  ///< after every chunk; may be empty
};

/// Fills the targets from a checkpoint: `memory[i]` holds targets[i] row-major and has its size. Values of
/// another floating dtype are converted. What is wanted but not stored is zero (see
/// core::LoadTarget::allow_shape_mismatch). Errc::corrupt names the file, the tensor and the part that do not
/// match their hash; targets may then hold anything.
core::Result<void> read_tensors(Storage& storage, std::string_view name, const core::Manifest& manifest,
                                std::span<const core::LoadTarget> targets,
                                std::span<const std::span<std::byte>> memory,
                                const ReadOptions& options = {});

/// A shard to be read.
struct ShardTask {
  const core::LoadRead& read;
  std::span<std::byte> whole;  ///< takes all of the shard, before its targets do; empty: not needed
};

/// Like read_tensors(), for the shards that a plan assigns to this rank. The headers of `files` are also
/// checked against their hashes. Targets that no shard fills are left to the caller.
core::Result<void> read_shards(Storage& storage, std::string_view name, const core::Manifest& manifest,
                               std::span<const ShardTask> tasks, const std::vector<std::uint32_t>& files,
                               std::span<const core::LoadTarget> targets,
                               std::span<const std::span<std::byte>> memory, const ReadOptions& options);

/// Reads every byte of a checkpoint and checks it against its hash. Errc::corrupt names everything that is
/// damaged; Errc::io says only that something cannot be read.
core::Result<void> verify_checkpoint(Storage& storage, std::string_view name, const core::Manifest& manifest,
                                     const ReadOptions& options = {});

}  // namespace troupe::actors
