#include "core/interop/zip_archive.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "core/errors.hpp"
#include "core/interop/zip_format.hpp"
#include "core/utf8.hpp"

namespace troupe::core {
namespace {

/// More than any archive with a tensor or the state of one object.
constexpr std::uint64_t kMaxZipEntries = 1 << 20;

struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

/// The range of an entry's bytes, including its header.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The archive's bytes; reading beyond them returns nothing.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= bytes_.size() && bytes <= bytes_.size() - offset;
  }
  /// A little-endian number, already checked with holds().
  std::uint64_t number(std::uint64_t offset, std::size_t bytes) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= std::to_integer<std::uint64_t>(bytes_[offset + i]) << (8 * i);
    }
    return value;
  }
  bool is_record(std::uint64_t offset, std::uint32_t signature, std::uint64_t bytes) const {
    return holds(offset, bytes) && number(offset, 4) == signature;
  }
  std::string_view text(std::uint64_t offset, std::uint64_t bytes) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + offset, bytes};
  }
  std::uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

/// The record at the end, which may be followed by a comment.
Result<std::uint64_t> find_end(const Reader& reader) {
  constexpr std::uint64_t kLongestComment = 0xffff;
  if (reader.size() >= kZipEndBytes) {
    const std::uint64_t last = reader.size() - kZipEndBytes;
    const std::uint64_t first = last - std::min(last, kLongestComment);
    for (std::uint64_t at = last + 1; at-- > first;) {
      if (reader.number(at, 4) == kZipEnd && reader.number(at + 20, 2) == last - at) return at;
    }
  }
  return fail(Errc::corrupt, "zip: {} bytes without an end record; the archive is cut short or none",
              reader.size());
}

Result<Directory> find_directory(const Reader& reader) {
  const std::uint64_t end = TRY(find_end(reader));
  Directory directory{reader.number(end + 16, 4), reader.number(end + 12, 4), reader.number(end + 10, 2)};
  std::uint64_t limit = end;
  const std::uint64_t locator = end - std::min<std::uint64_t>(end, kZip64LocatorBytes);
  if (end >= kZip64LocatorBytes && reader.is_record(locator, kZip64Locator, kZip64LocatorBytes)) {
    const std::uint64_t at = reader.number(locator + 8, 8);
    if (at > locator || locator - at < kZip64EndBytes || !reader.is_record(at, kZip64End, kZip64EndBytes)) {
      return fail(Errc::corrupt, "zip: no ZIP64 end record at byte {}, where its locator points", at);
    }
    directory = {reader.number(at + 48, 8), reader.number(at + 40, 8), reader.number(at + 32, 8)};
    limit = at;
  }
  if (directory.offset > limit || directory.bytes > limit - directory.offset) {
    return fail(Errc::corrupt, "zip: the directory ({} bytes at {}) leaves the archive ({} bytes)",
                directory.bytes, directory.offset, reader.size());
  }
  if (directory.entries > kMaxZipEntries || directory.entries * kZipCentralBytes > directory.bytes) {
    return fail(Errc::corrupt, "zip: {} entries do not fit into a directory of {} bytes (at most {})",
                directory.entries, directory.bytes, kMaxZipEntries);
  }
  return directory;
}

/// One record of the directory, which ends within `directory_end`.
struct Central {
  ZipEntry entry;
  std::uint64_t header_at = 0;
  std::uint64_t next = 0;
};

/// Replaces the fields that the record defers to its ZIP64 extra field.
bool read_zip64(const Reader& reader, std::uint64_t at, std::uint64_t end, Central& central,
                std::uint64_t& stored) {
  while (end - at >= 4) {
    const std::uint64_t id = reader.number(at, 2);
    const std::uint64_t bytes = reader.number(at + 2, 2);
    at += 4;
    if (bytes > end - at) return false;
    const std::uint64_t field_end = at + bytes;
    if (id == kZip64Extra) {
      for (std::uint64_t* value : {&central.entry.bytes, &stored, &central.header_at}) {
        if (*value != kZipTooLarge) continue;
        if (field_end - at < 8) return false;
        *value = reader.number(at, 8);
        at += 8;
      }
    }
    at = field_end;
  }
  return true;
}

Result<Central> read_central(const Reader& reader, std::uint64_t at, std::uint64_t directory_end) {
  if (at > directory_end || directory_end - at < kZipCentralBytes || reader.number(at, 4) != kZipCentral) {
    return fail(Errc::corrupt, "zip: no directory record at byte {}", at);
  }
  const std::uint64_t name_bytes = reader.number(at + 28, 2);
  const std::uint64_t extra_bytes = reader.number(at + 30, 2);
  const std::uint64_t comment_bytes = reader.number(at + 32, 2);
  const std::uint64_t name_at = at + kZipCentralBytes;
  if (directory_end - name_at < name_bytes + extra_bytes + comment_bytes) {
    return fail(Errc::corrupt, "zip: the directory record at byte {} is cut short", at);
  }
  Central central;
  central.next = name_at + name_bytes + extra_bytes + comment_bytes;
  central.entry.name = reader.text(name_at, name_bytes);
  central.entry.crc = static_cast<std::uint32_t>(reader.number(at + 16, 4));
  central.entry.bytes = reader.number(at + 24, 4);
  central.header_at = reader.number(at + 42, 4);
  std::uint64_t stored = reader.number(at + 20, 4);
  if (!is_utf8(central.entry.name)) {
    return fail(Errc::corrupt, "zip: the name in the directory record at byte {} is not UTF-8", at);
  }
  const std::uint64_t method = reader.number(at + 10, 2);
  const bool encrypted = (reader.number(at + 8, 2) & kZipEncrypted) != 0;
  const std::uint64_t extra_at = name_at + name_bytes;
  if (!read_zip64(reader, extra_at, extra_at + extra_bytes, central, stored)) {
    return fail(Errc::corrupt, "zip: '{}' has a damaged extra field", central.entry.name);
  }
  if (method != 0 || encrypted || stored != central.entry.bytes) {
    return fail(Errc::corrupt,
                "zip: '{}' must be stored plainly; method {}, {} bytes for {}{}. Save it with torch.save",
                central.entry.name, method, stored, central.entry.bytes, encrypted ? ", encrypted" : "");
  }
  return central;
}

/// Sets where the data begin; they end before the directory.
Result<Extent> locate(const Reader& reader, Central& central, std::uint64_t directory_at) {
  ZipEntry& entry = central.entry;
  const std::uint64_t at = central.header_at;
  if (at > directory_at || directory_at - at < kZipLocalBytes || reader.number(at, 4) != kZipLocal) {
    return fail(Errc::corrupt, "zip: '{}' has no header at byte {}", entry.name, at);
  }
  const std::uint64_t name_bytes = reader.number(at + 26, 2);
  entry.offset = at + kZipLocalBytes + name_bytes + reader.number(at + 28, 2);
  if (entry.offset > directory_at || entry.bytes > directory_at - entry.offset) {
    return fail(Errc::corrupt, "zip: '{}' ({} bytes at {}) runs into the directory at {}", entry.name,
                entry.bytes, entry.offset, directory_at);
  }
  if (reader.text(at + kZipLocalBytes, name_bytes) != entry.name) {
    return fail(Errc::corrupt, "zip: '{}' has another name in its header", entry.name);
  }
  return Extent{at, entry.offset + entry.bytes};
}

/// The name's first folder; empty unless the name is a plain path within a folder.
std::string_view folder_of(std::string_view name) {
  const std::size_t slash = name.find('/');
  const bool plain = slash != std::string_view::npos && slash > 0 && slash + 1 < name.size() &&
                     name.find('\0') == std::string_view::npos && name.find('\\') == std::string_view::npos &&
                     !name.starts_with("../") && name.find("/../") == std::string_view::npos &&
                     !name.ends_with("/..");
  return plain ? name.substr(0, slash) : std::string_view{};
}

Result<void> check_no_overlap(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      return fail(Errc::corrupt, "zip: two entries overlap at byte {}", extents[i].begin);
    }
  }
  return {};
}

}  // namespace

Result<ZipArchive> ZipArchive::open(std::span<const std::byte> bytes) {
  const Reader reader(bytes);
  const Directory directory = TRY(find_directory(reader));
  const std::uint64_t directory_end = directory.offset + directory.bytes;
  ZipArchive archive;
  archive.bytes_ = bytes;
  archive.entries_.reserve(directory.entries);
  std::vector<Extent> extents;
  extents.reserve(directory.entries);
  std::unordered_set<std::string_view> names;
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    Central central = TRY(read_central(reader, at, directory_end));
    extents.push_back(TRY(locate(reader, central, directory.offset)));
    const std::string_view folder = folder_of(central.entry.name);
    if (i == 0) archive.folder_ = folder;
    if (folder.empty() || folder != archive.folder_) {
      return fail(Errc::corrupt, "zip: '{}' does not lie in the archive's one folder '{}'",
                  central.entry.name, archive.folder_);
    }
    central.entry.name.remove_prefix(folder.size() + 1);
    if (!names.insert(central.entry.name).second) {
      return fail(Errc::corrupt, "zip: '{}' is there twice", central.entry.name);
    }
    archive.entries_.push_back(central.entry);
    at = central.next;
  }
  TRY(check_no_overlap(std::move(extents)));
  return archive;
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const ZipEntry& entry) { return entry.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

Result<std::span<const std::byte>> ZipArchive::read(std::string_view name) const {
  const ZipEntry* entry = find(name);
  if (entry == nullptr) return fail(Errc::corrupt, "zip: the archive has no '{}'", name);
  return data(*entry);
}

std::span<const std::byte> ZipArchive::data(const ZipEntry& entry) const {
  CHECK(entry.offset <= bytes_.size() && entry.bytes <= bytes_.size() - entry.offset,
        "an entry belongs to its archive");
  return bytes_.subspan(entry.offset, entry.bytes);
}

Result<void> ZipArchive::check_crc(const ZipEntry& entry) const {
  if (entry.crc == 0) return {};
  const std::uint32_t found = crc32(data(entry));
  if (found == entry.crc) return {};
  return fail(Errc::corrupt, "zip: '{}' has the CRC {:08x}, not {:08x} as it says; the bytes were altered",
              entry.name, found, entry.crc);
}

}  // namespace troupe::core
