#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/storage.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/ids.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The size limit of a checkpoint's manifest, which readers keep in memory.
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 30;

/// A checkpoint in a directory of checkpoints, named without its path: "step_00000200".
struct CheckpointName {
  std::string name;
  core::StepCount step{};  ///< completed steps

  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

/// All directories named as checkpoints, the newest first. What is unfinished or being removed has other
/// names.
core::Result<std::vector<CheckpointName>> list_checkpoints(Storage& storage);

/// The manifest of a checkpoint ("" : `storage` itself is one). Errc::not_found, or Errc::corrupt with the
/// file's name.
core::Result<core::Manifest> read_manifest(Storage& storage, std::string_view name);

/// The manifest, after checking that every file is there and has its size. Reads no tensor.
core::Result<core::Manifest> check_quickly(Storage& storage, std::string_view name);

/// A path of a file in a checkpoint.
std::string path_in(std::string_view name, std::string_view file);

/// Puts the manifest into `directory`, which holds all files and is durable; then makes it the checkpoint
/// `name`: manifest under a temporary name, fsync, rename, fsync of the directory, rename of the directory,
/// fsync of the root. CK-1: the name appears only after everything below it is durable. If a checkpoint of
/// this name exists and its every byte is right, it stays and this is Errc::already_exists; a damaged one is
/// set aside. Errc::invalid_argument for a manifest longer than readers take. An Error of `may_commit`, which
/// is asked last before the rename, is returned.
core::Result<void> commit_checkpoint(Storage& storage, std::string_view directory, std::string_view name,
                                     std::string_view manifest,
                                     std::uint64_t max_manifest_bytes = kMaxManifestBytes,
                                     const std::function<core::Result<void>()>& may_commit = {});

/// Writes the tracker file, which contains one integer and is only a hint.
core::Result<void> write_tracker(Storage& storage, core::StepCount step);

/// Whether a checkpoint counts as good; asked of each, the newest first.
using CheckpointJudge = std::function<bool(Storage&, const std::string& name)>;

bool is_good_quickly(Storage& storage, const std::string& name);

/// Removes what `retention` does not keep, and returns the names. Only checkpoints that `is_good` accepts
/// count, so the newest good one always stays; damaged ones are left for people to look at. Those after
/// `newest`, which was just committed, belong to an abandoned course of training, perhaps because they are
/// damaged: they neither count nor are removed.
core::Result<std::vector<std::string>> prune_checkpoints(Storage& storage, const core::Retention& retention,
                                                         bool dry_run = false,
                                                         std::optional<core::StepCount> newest = {},
                                                         const CheckpointJudge& is_good = is_good_quickly);

/// Removes what saves and removals left unfinished, except what a process is writing
/// (actors/world/storage/holds.hpp). Where the file system cannot say so, no save may be in progress in this
/// directory. True if nothing unfinished is left.
core::Result<bool> clear_unfinished(Storage& storage);

/// What names of checkpoints begin with.
inline constexpr std::string_view kCheckpointPrefix = "step_";

/// For a tool, which does not know who else writes there: removes what a process that is certainly gone left
/// of its writing, under names such as "step_00000200.tmp-0123456789abcdef" that begin with `prefix`, and for
/// kCheckpointPrefix also what removals left. Returns the names.
core::Result<std::vector<std::string>> clear_abandoned(Storage& storage, std::string_view prefix);

/// Removes a file, or a directory with all its contents; not_found is no error.
core::Result<void> remove_tree(Storage& storage, std::string_view path);

}  // namespace troupe::actors
