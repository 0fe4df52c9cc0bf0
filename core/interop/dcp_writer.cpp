#include <map>
#include <optional>
#include <span>
#include <unordered_set>

#include "core/errors.hpp"
#include "core/interop/dcp_checks.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/pickle_writer.hpp"
#include "core/interop/torch_names.hpp"
#include "core/utf8.hpp"

namespace troupe::core {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";
/// What PyTorch 2.9 and later write; older versions ignore it.
constexpr std::string_view kVersion = "1.0.0";

class Writer {
 public:
  explicit Writer(const DcpMetadata& metadata) : metadata_(metadata) {}
  std::vector<std::byte> write();

 private:
  /// Leaves an object on the stack with its state begun; end_object() closes both.
  void begin_object(std::string_view module, std::string_view name);
  void end_object();
  void size(std::span<const std::int64_t> shape);
  void properties(const TorchDType& dtype);
  void tensor(const DcpTensor& tensor);
  void path(const std::string& key, const KeyPath& path);
  void stored(const std::string& key, std::optional<std::span<const std::int64_t>> offset,
              const DcpPlace& place);

  const DcpMetadata& metadata_;
  PickleWriter pickle_{4};
  std::map<std::string_view, std::uint32_t> properties_;  ///< by name of the dtype
};

void Writer::begin_object(std::string_view module, std::string_view name) {
  pickle_.global(module, name);
  pickle_.tuple(0);
  pickle_.new_object();
  pickle_.empty_dict();
  pickle_.mark();
}

void Writer::end_object() {
  pickle_.set_all();
  pickle_.build();
}

void Writer::size(std::span<const std::int64_t> shape) {
  pickle_.global("torch", "Size");
  if (shape.size() > 3) pickle_.mark();
  for (const std::int64_t extent : shape) pickle_.integer(extent);
  pickle_.tuple(shape.size());
  pickle_.tuple(1);
  pickle_.reduce();
}

void Writer::properties(const TorchDType& dtype) {
  const auto name = torch_name(dtype);
  if (const auto known = properties_.find(name); known != properties_.end())
    return pickle_.recall(known->second);
  pickle_.global(kModule, "TensorProperties");
  pickle_.tuple(0);
  pickle_.new_object();
  pickle_.mark();
  pickle_.global("torch", name);
  pickle_.global("torch.serialization", "_get_layout");
  pickle_.text("torch.strided");
  pickle_.tuple(1);
  pickle_.reduce();
  pickle_.boolean(false);  // requires_grad
  pickle_.global(kModule, "_MEM_FORMAT_ENCODING");
  pickle_.integer(0);  // contiguous
  pickle_.tuple(1);
  pickle_.reduce();
  pickle_.boolean(false);  // pin_memory
  pickle_.tuple(5);
  pickle_.build();
  properties_.emplace(name, pickle_.remember());
}

TorchDType dtype_of(const DcpTensor& tensor) {
  return tensor.carried.empty() ? torch_dtype(tensor.dtype)
                                : torch_dtype_from(tensor.carried).value_or(TorchDType{});
}

/// Without the axis of bytes that a carried tensor has.
std::span<const std::int64_t> torch_axes(const DcpTensor& tensor, const Shape& shape) {
  return std::span(shape).first(shape.size() - (dtype_of(tensor).has_axis() ? 1 : 0));
}

void Writer::tensor(const DcpTensor& tensor) {
  pickle_.text(tensor.key);
  begin_object(kModule, "TensorStorageMetadata");
  pickle_.text("properties");
  properties(dtype_of(tensor));
  pickle_.text("size");
  size(torch_axes(tensor, tensor.shape));
  pickle_.text("chunks");
  pickle_.empty_list();
  pickle_.mark();
  for (const DcpChunk& chunk : tensor.chunks) {
    begin_object(kModule, "ChunkStorageMetadata");
    pickle_.text("offsets");
    size(torch_axes(tensor, chunk.box.offset));
    pickle_.text("sizes");
    size(torch_axes(tensor, chunk.box.extent));
    end_object();
  }
  pickle_.append_all();
  end_object();
}

void Writer::path(const std::string& key, const KeyPath& path) {
  pickle_.text(key);
  const KeyPath whole = path.empty() ? KeyPath{key} : path;
  if (whole.size() > 3) pickle_.mark();
  for (const Key& part : whole) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      pickle_.text(*text);
    } else {
      pickle_.integer(std::get<std::int64_t>(part));
    }
  }
  pickle_.tuple(whole.size());
}

void Writer::stored(const std::string& key, std::optional<std::span<const std::int64_t>> offset,
                    const DcpPlace& place) {
  begin_object(kModule, "MetadataIndex");
  pickle_.text("fqn");
  pickle_.text(key);
  if (offset) {
    pickle_.text("offset");
    size(*offset);
  }
  pickle_.text("index");
  pickle_.none();
  end_object();
  begin_object(kStorageModule, "_StorageInfo");
  pickle_.text("relative_path");
  pickle_.text(metadata_.files[place.file]);
  pickle_.text("offset");
  pickle_.integer(static_cast<std::int64_t>(place.offset));
  pickle_.text("length");
  pickle_.integer(static_cast<std::int64_t>(place.bytes));
  end_object();
}

std::vector<std::byte> Writer::write() {
  begin_object(kModule, "Metadata");
  pickle_.text("state_dict_metadata");
  pickle_.empty_dict();
  pickle_.mark();
  for (const DcpTensor& each : metadata_.tensors) tensor(each);
  for (const DcpItem& item : metadata_.items) {
    pickle_.text(item.key);
    pickle_.global(kModule, "BytesStorageMetadata");
    pickle_.tuple(0);
    pickle_.new_object();
  }
  pickle_.set_all();
  pickle_.text("planner_data");
  pickle_.empty_dict();
  pickle_.mark();
  for (const DcpTensor& each : metadata_.tensors) path(each.key, each.path);
  for (const DcpItem& item : metadata_.items) path(item.key, item.path);
  pickle_.set_all();
  pickle_.text("storage_data");
  pickle_.empty_dict();
  pickle_.mark();
  for (const DcpTensor& each : metadata_.tensors) {
    for (const DcpChunk& chunk : each.chunks)
      stored(each.key, torch_axes(each, chunk.box.offset), chunk.place);
  }
  for (const DcpItem& item : metadata_.items) stored(item.key, std::nullopt, item.place);
  pickle_.set_all();
  pickle_.text("storage_meta");
  pickle_.none();
  pickle_.text("version");
  pickle_.text(kVersion);
  end_object();
  return pickle_.finish();
}

Result<void> check_place(const DcpMetadata& metadata, const std::string& key, const DcpPlace& place) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;
  if (place.file < metadata.files.size() && place.offset < kLargest && place.bytes < kLargest) return {};
  return fail(Errc::invalid_argument, "dcp: '{}' lies in file {} of {}, {} bytes at {}", key, place.file,
              metadata.files.size(), place.bytes, place.offset);
}

/// Elements must be whole.
Result<void> check_carried(const DcpTensor& tensor) {
  if (tensor.carried.empty()) return {};
  const auto dtype = torch_dtype_from(tensor.carried);
  bool is_good = dtype && !dtype->carried.empty() && tensor.dtype == dtype->dtype;
  if (is_good && dtype->has_axis()) {
    const auto bytes = static_cast<std::int64_t>(dtype->bytes);
    is_good = !tensor.shape.empty() && tensor.shape.back() == bytes;
    for (const auto& chunk : tensor.chunks)
      is_good = is_good && !chunk.box.extent.empty() && chunk.box.extent.back() == bytes;
  }
  if (is_good) return {};
  return fail(Errc::invalid_argument, "dcp: '{}' of shape {} is not carried as torch.{}", tensor.key,
              to_string(tensor.shape), beginning_of(tensor.carried));
}

Result<void> check(const DcpMetadata& metadata) {
  std::unordered_set<std::string_view> keys;
  const auto check_key = [&](const std::string& key, const KeyPath& path) -> Result<void> {
    bool plain = is_utf8(key);
    for (const Key& part : path) {
      const auto* text = std::get_if<std::string>(&part);
      plain = plain && (text == nullptr || is_utf8(*text));
    }
    if (key.size() > kLongestDcpName) {
      return fail(Errc::invalid_argument, "dcp: a key has {} bytes, and readers take at most {}: '{}'",
                  key.size(), kLongestDcpName, beginning_of(key));
    }
    if (plain && keys.insert(key).second) return {};
    return fail(Errc::invalid_argument, "dcp: the key '{}' comes twice or is not UTF-8", key);
  };
  for (const std::string& name : metadata.files) {
    const Result<void> checked = check_dcp_file_name(name);
    if (!checked || !is_utf8(name) || name.size() > kLongestDcpName) {
      return fail(Errc::invalid_argument,
                  "dcp: '{}' is not a file name in UTF-8 below the directory, of at most {} bytes", name,
                  kLongestDcpName);
    }
  }
  for (const DcpTensor& tensor : metadata.tensors) {
    TRY(check_key(tensor.key, tensor.path));
    for (const DcpChunk& chunk : tensor.chunks) TRY(check_place(metadata, tensor.key, chunk.place));
    TRY(check_carried(tensor));
    const Result<void> checked = check_dcp_tensor(tensor);
    if (!checked) return fail(Errc::invalid_argument, "{}", checked.error().message);
  }
  for (const DcpItem& item : metadata.items) {
    TRY(check_key(item.key, item.path));
    TRY(check_place(metadata, item.key, item.place));
  }
  return {};
}

}  // namespace

Result<std::vector<std::byte>> encode_dcp_metadata(const DcpMetadata& metadata) {
  TRY(check(metadata));
  return Writer(metadata).write();
}

}  // namespace troupe::core
