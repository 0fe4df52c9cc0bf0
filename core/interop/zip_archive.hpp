#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/crc32.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A file of a stored (uncompressed) ZIP archive.
struct ZipEntry {
  std::string_view name;     ///< relative to the archive's single folder
  std::uint64_t offset = 0;  ///< of its data, from the archive's beginning
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  ///< 0 if the writer was told not to compute it
};

/// Reads a ZIP archive of the kind that torch.save writes, in place: entries are stored, are in one folder
/// and are found through the central directory. Names refer to the bytes of the archive, which must outlive
/// it.
class ZipArchive {
 public:
  /// Errc::corrupt for archives that are truncated or contradict themselves, for compressed or encrypted
  /// entries, for names outside of the folder, for duplicate names, and for entries that overlap or exceed
  /// the archive.
  static Result<ZipArchive> open(std::span<const std::byte> bytes);

  /// All of it.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view folder() const { return folder_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Null when there is none.
  const ZipEntry* find(std::string_view name) const;
  /// Errc::corrupt when there is none.
  Result<std::span<const std::byte>> read(std::string_view name) const;
  std::span<const std::byte> data(const ZipEntry& entry) const;
  /// Errc::corrupt unless the data match the entry's CRC-32, or it is 0.
  Result<void> check_crc(const ZipEntry& entry) const;

 private:
  std::span<const std::byte> bytes_;
  std::string_view folder_;
  std::vector<ZipEntry> entries_;
};

/// The data of entries begin at multiples of this, as PyTorch requires for mapping.
inline constexpr std::size_t kZipAlignment = 64;

/// Writes a ZIP archive as torch.save does: stored, aligned, each entry followed by its CRC-32 and size, with
/// ZIP64 records at the end. Big entries are streamed: their bytes do not pass through here.
class ZipWriter {
 public:
  /// All entries are in this folder.
  explicit ZipWriter(std::string folder) : folder_(std::move(folder)) {}

  void add(std::string_view name, std::span<const std::byte> data);
  void add(std::string_view name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }
  /// The caller writes take(), then `bytes` of data, and passes their CRC-32 to end().
  void begin(std::string_view name, std::uint64_t bytes);
  void end(std::uint32_t crc);
  /// The central directory.
  void finish();

  /// The bytes to write next; they are no longer kept here afterwards.
  std::vector<std::byte> take();
  /// From the beginning of the archive to the end of what was written or streamed.
  std::uint64_t position() const { return position_; }

 private:
  struct Written {
    std::string name;
    std::uint64_t header_at = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };

  void put(std::uint64_t value, std::size_t bytes);
  void put(std::string_view text);
  void put_central(const Written& entry);

  std::string folder_;
  std::vector<Written> entries_;
  std::vector<std::byte> out_;
  std::uint64_t position_ = 0;
};

}  // namespace troupe::core
