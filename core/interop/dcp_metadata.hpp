#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/interop/pickle.hpp"
#include "core/result.hpp"
#include "core/values/key_path.hpp"

namespace troupe::core {

/// Where torch.distributed.checkpoint put a value: a complete torch.save archive within a file.
struct DcpPlace {
  std::uint32_t file = 0;  ///< index in DcpMetadata::files
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const DcpPlace&, const DcpPlace&) = default;
};

struct DcpChunk {
  Box box;
  DcpPlace place;

  friend bool operator==(const DcpChunk&, const DcpChunk&) = default;
};

/// A named global tensor; its chunks cover it exactly, and none is empty.
struct DcpTensor {
  std::string key;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<DcpChunk> chunks;
  /// The tensor's path in the nested state; empty when the checkpoint does not say.
  KeyPath path;
  /// The dtype in PyTorch that Troupe lacks: elements, shape and boxes are as TorchDType says. Empty: it has
  /// it.
  std::string carried{};

  friend bool operator==(const DcpTensor&, const DcpTensor&) = default;
};

/// Any other saved value, in Python's pickle format.
struct DcpItem {
  std::string key;
  DcpPlace place;
  KeyPath path;

  friend bool operator==(const DcpItem&, const DcpItem&) = default;
};

/// What the checkpoint contains but this library cannot read.
struct DcpSkipped {
  std::string key;
  std::string reason;

  friend bool operator==(const DcpSkipped&, const DcpSkipped&) = default;
};

/// The contents of the .metadata file of a torch.distributed.checkpoint checkpoint (native format).
struct DcpMetadata {
  std::vector<std::string> files;  ///< relative to the directory
  std::vector<DcpTensor> tensors;
  std::vector<DcpItem> items;
  std::vector<DcpSkipped> skipped;

  friend bool operator==(const DcpMetadata&, const DcpMetadata&) = default;
};

inline constexpr std::string_view kDcpMetadataName = ".metadata";

/// Reads only data: classes are recognised by name, and unknown ones (plans that Megatron adds) are skipped.
/// Errc::corrupt for a pickle that does not parse, for chunks that do not cover their tensor exactly or have
/// no place, for places too small for their chunk, and for file names outside of the directory.
Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> bytes, const PickleLimits& limits = {});

/// Errc::corrupt names a missing file, a place that is not within its file, or a file whose places overlap so
/// much that their bytes exceed the file's. `file_bytes` returns nothing for a file that does not exist.
Result<void> check_dcp_files(
    const DcpMetadata& metadata,
    const std::function<std::optional<std::uint64_t>(const std::string& name)>& file_bytes);

/// Where the elements of a chunk are.
struct DcpElements {
  std::span<const std::byte> stored;  ///< from the first to the last one
  Shape strides;                      ///< as in TorchTensor; empty: `stored` is the chunk, row-major
};

/// The elements of a chunk within the bytes of its place. Errc::corrupt unless the archive there is a tensor
/// of the chunk's dtype and extent. With `check_crc` the elements are compared with their CRC-32, if the
/// archive has one.
Result<DcpElements> dcp_chunk_elements(const DcpTensor& tensor, const DcpChunk& chunk,
                                       std::span<const std::byte> place_bytes, bool check_crc);

/// The bytes of .metadata, as PyTorch 2.1 and later read them. `metadata.skipped` is not written.
/// Errc::invalid_argument for what parse_dcp_metadata would refuse.
Result<std::vector<std::byte>> encode_dcp_metadata(const DcpMetadata& metadata);

/// "__0_1.distcp": the second file written by rank 0.
std::string dcp_file_name(int rank, int index);

}  // namespace troupe::core
