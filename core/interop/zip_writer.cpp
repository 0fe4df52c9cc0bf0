#include <algorithm>
#include <utility>

#include "core/interop/zip_archive.hpp"
#include "core/interop/zip_format.hpp"

namespace troupe::core {
namespace {

constexpr std::uint64_t kFlags = kZipHasDescriptor | kZipUtf8;
/// PyTorch fills the gap before aligned data with an extra field of this id.
constexpr std::string_view kPaddingId = "FB";
/// Id and length of an extra field.
constexpr std::uint64_t kExtraHeaderBytes = 4;
constexpr std::uint64_t kZip64SizesBytes = 16;
/// The format version that introduced ZIP64.
constexpr std::uint64_t kZip64Version = 45;

}  // namespace

void ZipWriter::put(std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    out_.push_back(static_cast<std::byte>(value));
    value >>= 8;
  }
  position_ += bytes;
}

void ZipWriter::put(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  position_ += bytes.size();
}

void ZipWriter::begin(std::string_view name, std::uint64_t bytes) {
  Written entry{folder_ + "/" + std::string(name), position_, bytes, 0};
  const std::uint64_t sizes = bytes >= kZipTooLarge ? kExtraHeaderBytes + kZip64SizesBytes : 0;
  const std::uint64_t before_padding =
      position_ + kZipLocalBytes + entry.name.size() + sizes + kExtraHeaderBytes;
  const std::uint64_t padding = (kZipAlignment - before_padding % kZipAlignment) % kZipAlignment;
  put(kZipLocal, 4);
  put(sizes != 0 ? kZip64Version : 0, 2);
  put(kFlags, 2);
  put(0, 2 + 4);      // stored; no time
  put(0, 4 + 4 + 4);  // CRC and sizes follow the data
  put(entry.name.size(), 2);
  put(sizes + kExtraHeaderBytes + padding, 2);
  put(entry.name);
  if (sizes != 0) {
    put(kZip64Extra, 2);
    put(kZip64SizesBytes, 2);
    put(0, 8);
    put(0, 8);
  }
  put(kPaddingId);
  put(padding, 2);
  put(std::string(padding, 'Z'));
  position_ += bytes;
  entries_.push_back(std::move(entry));
}

void ZipWriter::end(std::uint32_t crc) {
  Written& entry = entries_.back();
  entry.crc = crc;
  const std::size_t size_bytes = entry.bytes >= kZipTooLarge ? 8 : 4;
  put(kZipDescriptor, 4);
  put(crc, 4);
  put(entry.bytes, size_bytes);
  put(entry.bytes, size_bytes);
}

void ZipWriter::add(std::string_view name, std::span<const std::byte> data) {
  begin(name, data.size());
  out_.insert(out_.end(), data.begin(), data.end());
  end(crc32(data));
}

void ZipWriter::put_central(const Written& entry) {
  const bool large = entry.bytes >= kZipTooLarge;
  const bool far = entry.header_at >= kZipTooLarge;
  const std::uint64_t extra = (large ? 16 : 0) + (far ? 8 : 0);
  put(kZipCentral, 4);
  put(0, 2);
  put(extra != 0 ? kZip64Version : 0, 2);
  put(kFlags, 2);
  put(0, 2 + 4);  // stored; no time
  put(entry.crc, 4);
  put(large ? kZipTooLarge : entry.bytes, 4);
  put(large ? kZipTooLarge : entry.bytes, 4);
  put(entry.name.size(), 2);
  put(extra != 0 ? extra + kExtraHeaderBytes : 0, 2);
  put(0, 2 + 2 + 2);  // no comment, first disk, no internal attributes
  put(0, 4);
  put(far ? kZipTooLarge : entry.header_at, 4);
  put(entry.name);
  if (extra == 0) return;
  put(kZip64Extra, 2);
  put(extra, 2);
  if (large) {
    put(entry.bytes, 8);
    put(entry.bytes, 8);
  }
  if (far) put(entry.header_at, 8);
}

void ZipWriter::finish() {
  const std::uint64_t directory_at = position_;
  for (const Written& entry : entries_) put_central(entry);
  const std::uint64_t end_at = position_;
  put(kZip64End, 4);
  put(kZip64EndBytes - 12, 8);
  // Copied from torch.save: written by version 3.0 on Unix, to be read by 4.5.
  put(0x031e, 2);
  put(kZip64Version, 2);
  put(0, 4 + 4);  // one disk
  put(entries_.size(), 8);
  put(entries_.size(), 8);
  put(end_at - directory_at, 8);
  put(directory_at, 8);
  put(kZip64Locator, 4);
  put(0, 4);
  put(end_at, 8);
  put(1, 4);
  put(kZipEnd, 4);
  put(0, 2 + 2);
  put(std::min<std::uint64_t>(entries_.size(), 0xffff), 2);
  put(std::min<std::uint64_t>(entries_.size(), 0xffff), 2);
  put(std::min(end_at - directory_at, kZipTooLarge), 4);
  put(std::min(directory_at, kZipTooLarge), 4);
  put(0, 2);
}

std::vector<std::byte> ZipWriter::take() {
  return std::exchange(out_, {});
}

}  // namespace troupe::core
