#pragma once

#include <cstdint>
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

/// A checkpoint in a directory of checkpoints, by its name only: "step_00000200".
struct CheckpointName {
  std::string name;
  core::StepCount step{};  ///< steps that were over

  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

/// All that are called checkpoints, the newest first. What is unfinished or being removed has other names.
core::Result<std::vector<CheckpointName>> list_checkpoints(Storage& storage);

/// The manifest of a checkpoint ("" : `storage` itself is one). Errc::not_found, or Errc::corrupt with the
/// file's name.
core::Result<core::Manifest> read_manifest(Storage& storage, std::string_view name);

/// The manifest, and that every file is there with its size. Reads no tensor.
core::Result<core::Manifest> check_quickly(Storage& storage, std::string_view name);

/// A path of a file in a checkpoint.
std::string path_in(std::string_view name, std::string_view file);

/// Puts the manifest into `directory`, which holds all files, durable; then makes it the checkpoint `name`:
/// manifest under a temporary name, fsync, rename, fsync of the directory, rename of the directory, fsync of
/// the root. CK-1: the name appears only after everything below it is durable. A checkpoint of this name
/// whose every byte is right stays and is Errc::already_exists; a damaged one is set aside.
core::Result<void> commit_checkpoint(Storage& storage, std::string_view directory, std::string_view name,
                                     std::string_view manifest);

/// Writes the tracker file, which is only a hint: one integer.
core::Result<void> write_tracker(Storage& storage, core::StepCount step);

/// Removes what `retention` does not keep, and returns the names. Only checkpoints that check_quickly()
/// finds good count, so the newest good one always stays; damaged ones are left for people to look at.
/// Those after `newest`, which was just committed, are of a course of training that was left, perhaps because
/// they are damaged: they neither count nor go.
core::Result<std::vector<std::string>> prune_checkpoints(Storage& storage, const core::Retention& retention,
                                                         bool dry_run = false,
                                                         std::optional<core::StepCount> newest = {});

/// Removes what saves and removals left unfinished. No save may be under way in this directory.
core::Result<void> clear_unfinished(Storage& storage);

/// A file, or a directory and all that is in it; not_found is no error.
core::Result<void> remove_tree(Storage& storage, std::string_view path);

}  // namespace troupe::actors
