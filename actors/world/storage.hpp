#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::actors {

/// A file written from its beginning. Destroying it closes it and guarantees nothing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;

  virtual core::Result<void> append(std::span<const std::byte> bytes) = 0;
  /// If this succeeds, all bytes so far are durable (the name is once the directory is synced). After a
  /// failure the bytes may be lost even if a later sync() succeeds: write the file again.
  virtual core::Result<void> sync() = 0;
  virtual core::Result<void> close() = 0;
};

/// A tree of files below one directory. Paths are relative to it, such as "step_10/shard_0", without empty,
/// "." or ".." parts; "" is the directory itself. Errc::not_found for what does not exist, Errc::io for what
/// the system refuses, Errc::invalid_argument for an invalid path.
///
/// Every function blocks as long as the disk takes: it is called by I/O workers, never in a handler. Any
/// thread may call; concurrent calls on the same path race as in the file system.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Creates a new file, or empties an existing one.
  virtual core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) = 0;
  /// The bytes from `offset`, at most `limit` of them; fewer only at the end of the file.
  virtual core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                                    std::size_t limit) = 0;
  /// Like read(), into the caller's memory: fills `bytes` from its beginning and returns how many were read.
  virtual core::Result<std::size_t> read_into(std::string_view path, std::uint64_t offset,
                                              std::span<std::byte> bytes);
  virtual core::Result<std::uint64_t> size(std::string_view path) = 0;

  /// Errc::already_exists if something has this name.
  virtual core::Result<void> make_directory(std::string_view path) = 0;
  /// The names in a directory, sorted.
  virtual core::Result<std::vector<std::string>> list(std::string_view path) = 0;
  /// Replaces a file `to`, or an empty directory if `from` is one; atomic for readers, durable once the
  /// directories of both are synced.
  virtual core::Result<void> rename(std::string_view from, std::string_view to) = 0;
  /// A file or an empty directory.
  virtual core::Result<void> remove(std::string_view path) = 0;
  /// If this succeeds, the names in this directory are durable.
  virtual core::Result<void> sync_directory(std::string_view path) = 0;
};

/// The parts of a path, or why it is invalid.
core::Result<std::vector<std::string>> split_path(std::string_view path);

}  // namespace troupe::actors
