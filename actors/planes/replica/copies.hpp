#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/planes/checkpoint/upload.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/copy_manifest.hpp"
#include "core/hash.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Saves in a storage, the newest first. Files and directories with other names are ignored.
core::Result<std::vector<core::CopyName>> list_saves(Storage& storage);

struct FoundCopies {
  std::vector<core::HeldCopy> held;
  std::vector<std::string> passed_over;  ///< copies that are there but cannot be used, and why
};

/// The copies in a storage whose manifest is good and whose files have the right sizes. Their bytes are not
/// read.
core::Result<FoundCopies> find_copies(Storage& storage);

/// The manifest of a copy, which must agree with its place. Errc::corrupt.
core::Result<core::CopyManifest> read_copy_manifest(Storage& storage, const core::CopyName& name,
                                                    core::Rank owner);

/// Makes an empty directory for a copy, and the one above it.
core::Result<void> make_copy_directory(Storage& storage, const core::CopyName& name, core::Rank owner);

/// Writes the manifest into a copy whose files are there and gives the copy its name. With `sync` it is then
/// durable. Returns the copy's size in bytes as it is sent to others.
core::Result<std::uint64_t> seal_copy(Storage& storage, const core::CopyManifest& manifest, bool sync);

/// Removes copies that were being written when their job ended. No save may be under way.
core::Result<void> clear_unfinished_copies(Storage& storage);

/// Removes all saves except the newest `keep` of those that are not newer than `newest`.
core::Result<void> tidy_copies(Storage& storage, const core::CopyName& newest, int keep);
/// Removes saves that are older than `newest`, whose copies are elsewhere, except the newest `keep` - 1 of
/// them.
core::Result<void> tidy_older_copies(Storage& storage, const core::CopyName& newest, int keep);

/// Reads the rank's own copy into memory, piece by piece: `memory[i]` has the size of the structure's piece
/// i. If the host cannot access it, all of it goes through `uploads`, which are otherwise null. Errc::corrupt
/// names the file that does not match its hash, Errc::mismatch a copy of another structure.
core::Result<void> read_copy(Storage& storage, const core::CopyManifest& manifest,
                             const core::SaveStructure& structure,
                             std::span<const std::span<std::byte>> memory, UploadPool* uploads = nullptr);

/// Reads a whole copy and checks it against its hashes. Errc::corrupt.
core::Result<void> verify_copy(Storage& storage, const core::CopyName& name, core::Rank owner);

/// Follows the segments of a copy's files as their bytes pass through, and checks each against its hash.
class CopyCheck {
 public:
  /// Every segment has bytes, which parse_copy_manifest() ensures.
  explicit CopyCheck(std::vector<core::CopyFile> files) : files_(std::move(files)) {}

  bool at_end() const { return file_ == files_.size(); }
  const core::CopyFile& file() const { return files_[file_]; }
  std::uint64_t offset() const { return offset_; }  ///< within the file
  /// Up to the end of the segment.
  std::uint64_t rest() const { return file().segments[segment_].end - offset_; }
  /// At most rest() bytes. Errc::corrupt names the file and the segment that does not match.
  core::Result<void> pass(std::span<const std::byte> bytes);

 private:
  std::vector<core::CopyFile> files_;
  std::size_t file_ = 0;
  std::size_t segment_ = 0;
  std::uint64_t offset_ = 0;
  core::HashStream hash_;
};

/// A copy in transit: the length of its manifest, the manifest, then its files one after the other. Read from
/// beginning to end; the bytes are checked against their hashes.
class CopySource {
 public:
  static core::Result<std::unique_ptr<CopySource>> open(Storage& storage, const core::CopyName& name,
                                                        core::Rank owner);
  core::Result<void> read(std::span<std::byte> bytes);

 private:
  CopySource(Storage& storage, std::string path, std::string head, std::vector<core::CopyFile> files)
      : storage_(storage), path_(std::move(path)), head_(std::move(head)), check_(std::move(files)) {}

  Storage& storage_;
  std::string path_;
  std::string head_;
  std::size_t head_read_ = 0;
  CopyCheck check_;
};

/// Where a copy arrives. Every segment is checked against its hash; what arrives after the first failure is
/// ignored.
class CopySink {
 public:
  /// The storage must outlive it.
  CopySink(Storage& storage, core::CopyName name, core::Rank owner, bool sync)
      : storage_(storage), name_(name), owner_(owner), sync_(sync) {}

  core::Result<void> write(std::span<const std::byte> bytes);
  /// All bytes have arrived: the copy gets its name if it is whole.
  core::Result<void> close();

 private:
  core::Result<void> take(std::span<const std::byte> bytes);
  core::Result<void> take_head(std::span<const std::byte>& bytes);
  core::Result<void> take_file(std::span<const std::byte>& bytes);
  core::Result<void> end_file();

  Storage& storage_;
  core::CopyName name_;
  core::Rank owner_;
  bool sync_;
  core::Result<void> failure_;
  std::string head_;
  core::CopyManifest manifest_;
  std::optional<CopyCheck> check_;  ///< once the manifest is there
  std::unique_ptr<WritableFile> file_;
};

}  // namespace troupe::actors
