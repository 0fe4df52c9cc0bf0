#include "core/interop/dcp_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/interop/crc32.hpp"
#include "core/interop/torch_archive.hpp"

namespace troupe::core {
namespace {

constexpr std::uint64_t kMaxElementsOfTensor = std::uint64_t{1} << 58;

Result<void> check_place(const DcpMetadata& metadata, std::span<const std::optional<std::uint64_t>> sizes,
                         std::string_view key, const DcpPlace& place) {
  const std::string& name = metadata.files[place.file];
  const auto size = sizes[place.file];
  if (!size) return fail(Errc::corrupt, "dcp: '{}' lies in the file '{}', which is not there", key, name);
  if (place.offset > *size || place.bytes > *size - place.offset) {
    return fail(Errc::corrupt, "dcp: '{}' ({} bytes at {}) leaves the file '{}', which has {} bytes", key,
                place.bytes, place.offset, name, *size);
  }
  return {};
}

}  // namespace

Result<void> check_dcp_file_name(std::string_view name) {
  bool plain = !name.empty() && name.find('\0') == std::string_view::npos;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    plain = plain && !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (plain) return {};
  return fail(Errc::corrupt, "dcp: '{}' is not a file name below the checkpoint's directory", name);
}

Result<void> check_dcp_tensor(const DcpTensor& tensor) {
  const Result<void> shape = check_shape(tensor.shape);
  if (!shape) return fail(Errc::corrupt, "dcp: '{}': {}", tensor.key, shape.error().message);
  auto left = static_cast<std::uint64_t>(elements_of(tensor.shape));
  if (left > kMaxElementsOfTensor)
    return fail(Errc::corrupt, "dcp: '{}' has more than 2^58 elements", tensor.key);
  std::vector<const Box*> boxes;
  boxes.reserve(tensor.chunks.size());
  for (const DcpChunk& chunk : tensor.chunks) {
    if (!chunk.box.lies_in(tensor.shape)) {
      return fail(Errc::corrupt, "dcp: '{}': the chunk {} does not lie in the shape {}", tensor.key,
                  to_string(chunk.box), to_string(tensor.shape));
    }
    const auto elements = static_cast<std::uint64_t>(chunk.box.elements());
    if (elements > left) {
      return fail(Errc::corrupt, "dcp: '{}': the chunks have more elements than the shape {}", tensor.key,
                  to_string(tensor.shape));
    }
    left -= elements;
    if (chunk.place.bytes < elements * size_of(tensor.dtype)) {
      return fail(Errc::corrupt, "dcp: '{}': the chunk {} of {} elements does not fit into its {} bytes",
                  tensor.key, to_string(chunk.box), elements, chunk.place.bytes);
    }
    boxes.push_back(&chunk.box);
  }
  const Result<void> cover = check_exact_cover(tensor.shape, boxes);
  if (!cover) return fail(Errc::corrupt, "dcp: '{}': {}", tensor.key, cover.error().message);
  return {};
}

Result<void> check_dcp_files(
    const DcpMetadata& metadata,
    const std::function<std::optional<std::uint64_t>(const std::string& name)>& file_bytes) {
  std::vector<std::optional<std::uint64_t>> sizes;
  for (const std::string& name : metadata.files) sizes.push_back(file_bytes(name));
  // Bytes of each file not yet used by a place: every reader of a checkpoint reads each place once.
  auto left = sizes;
  const auto check = [&](std::string_view key, const DcpPlace& place) -> Result<void> {
    TRY(check_place(metadata, sizes, key, place));
    if (place.bytes > *left[place.file]) {
      return fail(Errc::corrupt,
                  "dcp: places in the file '{}' overlap: up to '{}' they have more than its {} bytes",
                  metadata.files[place.file], key, *sizes[place.file]);
    }
    *left[place.file] -= place.bytes;
    return {};
  };
  for (const DcpTensor& tensor : metadata.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) TRY(check(tensor.key, chunk.place));
  }
  for (const DcpItem& item : metadata.items) TRY(check(item.key, item.place));
  return {};
}

Result<DcpElements> dcp_chunk_elements(const DcpTensor& tensor, const DcpChunk& chunk,
                                       std::span<const std::byte> place_bytes, bool check_crc) {
  Result<TorchTensor> stored = parse_torch_tensor(place_bytes, ForeignTypes::carry);
  if (!stored) {
    return fail(stored.error().code, "dcp: '{}' {}: {}", tensor.key, to_string(chunk.box),
                stored.error().message);
  }
  if (stored->dtype != tensor.dtype || stored->carried != tensor.carried ||
      stored->shape != chunk.box.extent) {
    return fail(Errc::corrupt, "dcp: '{}' {}: the file has {} {}, the metadata says {} {}", tensor.key,
                to_string(chunk.box), name_of(stored->dtype), to_string(stored->shape), name_of(tensor.dtype),
                to_string(chunk.box.extent));
  }
  const auto elements = place_bytes.subspan(stored->offset, stored->stored_bytes);
  if (check_crc && stored->crc && crc32(elements) != *stored->crc) {
    return fail(Errc::corrupt, "dcp: '{}' {}: the elements do not have their CRC-32; the file was altered",
                tensor.key, to_string(chunk.box));
  }
  return DcpElements{elements, std::move(stored->strides)};
}

std::string dcp_file_name(int rank, int index) {
  return fmt::format("__{}_{}.distcp", rank, index);
}

}  // namespace troupe::core
