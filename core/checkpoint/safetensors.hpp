#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// The layout of a safetensors file: the header's length in 8 bytes, little-endian; the header (JSON, padded
/// with blanks); then the tensors' bytes without gaps. The format is documented at
/// https://huggingface.co/docs/safetensors.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0;  ///< bytes from the beginning of the file
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

/// A tensor of an element type that this library lacks.
struct UnknownSafetensor {
  std::string name;
  std::string dtype;  ///< as the header has it, at most 32 bytes
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const UnknownSafetensor&, const UnknownSafetensor&) = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        ///< in the order of their bytes
  std::vector<UnknownSafetensor> unknown;       ///< as above
  std::map<std::string, std::string> metadata;  ///< the free-form member kMetadataName
  std::uint64_t data_begin = 0;                 ///< where the first tensor begins

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

/// The member of a header that is not a tensor.
inline constexpr const char* kMetadataName = "__metadata__";
/// Size limit of a header, which readers keep in memory; its length, the first 8 bytes of the file, not
/// included.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// "F32", "BF16", "F8_E4M3", "BOOL", ...
std::string_view safetensors_name(DType dtype) noexcept;
/// Errc::unavailable for another name: newer writers have more types.
Result<DType> dtype_from_safetensors(std::string_view name);

/// The beginning of the file up to the first tensor, a multiple of 64 bytes. Sets begin and end of every
/// entry, in the given order. Names must be distinct and UTF-8, and must not be kMetadataName.
std::string safetensors_header(std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata);

/// Errc::invalid_argument for a header, as safetensors_header() returns it, that readers would refuse for its
/// size.
Result<void> check_header_size(std::string_view header);

/// Validates a header: `beginning` holds at least the header, `file_bytes` is the size of the file.
/// Errc::corrupt for a header that is short, not JSON, or too large (100 MB), for tensors that overlap, leave
/// gaps or do not end where the file does, for sizes that contradict shape and dtype, and for duplicate
/// names. The sizes of unknown types are checked only if their widths are known.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> beginning,
                                                   std::uint64_t file_bytes);

/// Bytes of the header including its length, from the file's first 8 bytes: how much to read before calling
/// parse_safetensors_header.
Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> first_bytes,
                                               std::uint64_t file_bytes);

/// The "__metadata__" of a file whose tensors are parts, in the form that PyTorch's Hugging Face reader
/// expects. There is one offset per entry.
std::map<std::string, std::string> sharding_metadata(std::span<const SafetensorsEntry> entries,
                                                     std::span<const Shape> offsets);

/// The offset of every entry in its global tensor, in entry order; zeros where the file gives none.
/// Errc::corrupt when the metadata does not parse or has another number of axes.
Result<std::vector<Shape>> sharding_offsets(const SafetensorsHeader& header);

}  // namespace troupe::core
