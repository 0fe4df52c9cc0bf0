#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/torch_names.hpp"
#include "core/interop/zip_archive.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// A tensor in an archive of torch.save. Its elements are little-endian.
struct TorchTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t offset = 0;  ///< of the first element, in bytes from the archive's beginning
  std::uint64_t bytes = 0;   ///< of all elements
  /// In elements, one per axis; empty: they are contiguous and row-major. With a stride of 0 an axis repeats
  /// what is stored once.
  Shape strides;
  /// From the first element to the last one in the archive: `bytes` unless there are strides.
  std::uint64_t stored_bytes = 0;
  /// CRC-32 of the stored bytes; empty when the archive does not say.
  std::optional<std::uint32_t> crc;
  /// The dtype in PyTorch that Troupe lacks (TorchDType); empty: it has it.
  std::string_view carried;

  friend bool operator==(const TorchTensor&, const TorchTensor&) = default;
};

/// The object given to torch.save, as nodes. All refers to the archive's bytes, which must outlive it.
struct TorchArchive {
  ZipArchive files;
  PickleDocument object;

  /// Errc::corrupt for a ZIP or a pickle that does not parse, and for another byte order.
  static Result<TorchArchive> open(std::span<const std::byte> bytes);
};

/// A dict, or the dict of an OrderedDict.
std::optional<PickleNode> torch_dict(const PickleNode& node);

/// Whether a node represents a tensor or parameter.
bool is_torch_tensor(const PickleNode& node);

/// What becomes of tensors whose dtypes Troupe lacks.
enum class ForeignTypes : std::uint8_t {
  refuse,
  carry,  ///< as TorchDType says, if they are known
};

/// A tensor, or a parameter, within an archive. Errc::unavailable for dtypes that Troupe lacks and for
/// tensors whose elements are stored negated or conjugated; Errc::corrupt when its numbers contradict each
/// other or its storage.
Result<TorchTensor> torch_tensor(const TorchArchive& archive, const PickleNode& node,
                                 ForeignTypes foreign = ForeignTypes::refuse);

/// An archive that is a single tensor, as in the files of torch.distributed.checkpoint.
Result<TorchTensor> parse_torch_tensor(std::span<const std::byte> bytes,
                                       ForeignTypes foreign = ForeignTypes::refuse);

/// Writes one contiguous tensor as torch.save does: head(), then the elements, then tail(). All sizes are
/// known before the elements, so files can be laid out first and streamed later.
class TorchTensorWriter {
 public:
  /// Errc::invalid_argument for a shape that check_shape refuses.
  static Result<TorchTensorWriter> create(DType dtype, const Shape& shape) {
    return create(torch_dtype(dtype), shape);
  }
  /// `shape` is that of the tensor in PyTorch.
  static Result<TorchTensorWriter> create(const TorchDType& dtype, const Shape& shape);

  const std::vector<std::byte>& head() const { return head_; }
  std::uint64_t data_bytes() const { return data_bytes_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// `crc` is the CRC-32 of the elements.
  std::vector<std::byte> tail(std::uint32_t crc) const;

 private:
  TorchTensorWriter() : zip_("archive") {}

  ZipWriter zip_;
  std::vector<std::byte> head_;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

/// A complete archive around a pickle of protocol 2 without storages.
std::vector<std::byte> torch_archive(std::span<const std::byte> pickle);

}  // namespace troupe::core
