#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "actors/world/storage.hpp"
#include "posix/descriptor.hpp"

namespace troupe::actors {

/// What to do with symbolic links below a directory.
enum class Links : std::uint8_t {
  refuse,
  follow,
  /// Files that are links to ../../blobs/NAME are read, as in Hugging Face's cache; other links are refused.
  to_blobs,
};

/// How files are read.
enum class Reads : std::uint8_t {
  through_cache,
  /// Long reads bypass the page cache if the file system can: for what is read once, and is as large as the
  /// memory.
  past_cache,
};

/// A directory of the file system. Only regular files are read and written: a pipe, a socket or a device in
/// the place of one is Errc::corrupt, and so is a link, which could lead out of the directory, unless links
/// are followed. Nothing waits for the other end of a pipe.
class PosixStorage final : public Storage {
 public:
  /// The directory must exist; it may be renamed later, and it may be a link.
  static core::Result<std::unique_ptr<PosixStorage>> open(const std::string& directory,
                                                          Links links = Links::refuse,
                                                          Reads reads = Reads::through_cache);
  /// Like open(), after creating the directory and its parents if they do not exist. What it creates is
  /// durable.
  static core::Result<std::unique_ptr<PosixStorage>> open_or_make(const std::string& directory);

  core::Result<std::unique_ptr<WritableFile>> create(std::string_view path) override;
  core::Result<std::vector<std::byte>> read(std::string_view path, std::uint64_t offset,
                                            std::size_t limit) override;
  core::Result<std::size_t> read_into(std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) override;
  core::Result<std::uint64_t> size(std::string_view path) override;
  core::Result<void> make_directory(std::string_view path) override;
  core::Result<std::vector<std::string>> list(std::string_view path) override;
  core::Result<void> rename(std::string_view from, std::string_view to) override;
  core::Result<void> remove(std::string_view path) override;
  core::Result<void> sync_directory(std::string_view path) override;

  /// A regular file, open for reading.
  core::Result<posix::Descriptor> open_file(std::string_view path) const;
  core::Result<posix::Descriptor> open_directory(std::string_view path) const;

 private:
  PosixStorage(std::string directory, posix::Descriptor descriptor, Links links, Reads reads)
      : directory_(std::move(directory)), descriptor_(std::move(descriptor)), links_(links), reads_(reads) {}

  core::Error failure(std::string_view what, std::string_view path, int error) const;
  core::Result<std::size_t> read_from(int file, std::string_view path, std::uint64_t offset,
                                      std::span<std::byte> bytes) const;
  core::Result<posix::Descriptor> open_at(std::string_view path, int flags) const;
  /// Empty, with errno, if it cannot be opened.
  posix::Descriptor open_blob(const std::string& name, int flags) const;
  /// Also Errc::corrupt if it is not a regular file.
  core::Result<posix::Descriptor> open_regular(std::string_view path, int flags) const;

  std::string directory_;  ///< for messages
  posix::Descriptor descriptor_;
  Links links_;
  Reads reads_;
};

}  // namespace troupe::actors
