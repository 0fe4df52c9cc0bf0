#include "core/interop/torch_archive.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/interop/pickle_writer.hpp"
#include "core/interop/torch_names.hpp"

namespace troupe::core {
namespace {

constexpr std::string_view kUtils = "torch._utils";
/// Tensors have no deep structure, and no value in a state dict is large.
constexpr PickleLimits kLimits{
    .bytes = std::size_t{1} << 30, .nodes = std::size_t{1} << 25, .memo = std::size_t{1} << 25, .depth = 128};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A place in a storage, before any check against the archive.
struct Storage {
  std::string_view key;
  std::optional<TorchDType> dtype;  ///< empty if untyped
  std::uint64_t size = 0;           ///< elements, or bytes if untyped
};

Result<Storage> storage_of(const PickleNode& node) {
  const auto id = node.persistent_id();
  if (!id || id->kind() != PickleKind::tuple || id->size() < 5 || id->item(0).as_text() != "storage") {
    return fail(Errc::corrupt, "torch: a tensor's storage is a {}, not a persistent id of five parts",
                class_name(node));
  }
  const auto key = id->item(2).as_text();
  const auto size = id->item(4).as_integer();
  const bool digits = key && !key->empty() && key->find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits || !size || *size < 0) {
    return fail(Errc::corrupt, "torch: a storage must have a number as its key and a size >= 0");
  }
  Storage storage{*key, std::nullopt, static_cast<std::uint64_t>(*size)};
  const PickleNode type = id->item(1);
  if (type.is_global("torch.storage", "UntypedStorage")) return storage;
  if (type.kind() != PickleKind::global || type.module() != "torch") {
    return fail(Errc::corrupt, "torch: {} is not a class of storages", class_name(type));
  }
  storage.dtype = TRY(torch_dtype_from_storage(type.name()));
  return storage;
}

/// The call of _rebuild_tensor_v2 or _v3 inside its wrappers.
struct Rebuild {
  PickleNode arguments;
  bool has_dtype = false;
};

std::optional<Rebuild> rebuild_of(const PickleNode& node) {
  if (node.kind() != PickleKind::object || node.is_new()) return std::nullopt;
  PickleNode callable = *node.callable();
  PickleNode arguments = *node.arguments();
  if (callable.is_global(kUtils, "_rebuild_parameter") && arguments.size() == 3) {
    const PickleNode inner = arguments.item(0);
    if (inner.kind() != PickleKind::object) return std::nullopt;
    callable = *inner.callable();
    arguments = *inner.arguments();
  } else if (callable.is_global("torch._tensor", "_rebuild_from_type_v2") && arguments.size() == 4) {
    callable = arguments.item(0);
    arguments = arguments.item(2);
  }
  const bool v2 = callable.is_global(kUtils, "_rebuild_tensor_v2");
  const bool v3 = callable.is_global(kUtils, "_rebuild_tensor_v3");
  if (!v2 && !v3) return std::nullopt;
  if (arguments.kind() != PickleKind::tuple || arguments.size() < (v3 ? 7 : 6)) return std::nullopt;
  return Rebuild{arguments, v3};
}

/// What torch.save adds when a tensor is a view whose elements are to be negated or conjugated.
Result<void> check_marks(const Rebuild& rebuild) {
  const std::size_t place = rebuild.has_dtype ? 7 : 6;
  if (rebuild.arguments.size() <= place) return {};
  const PickleNode marks = rebuild.arguments.item(place);
  if (marks.kind() == PickleKind::dict && marks.size() == 0) return {};
  if (marks.kind() == PickleKind::none) return {};
  return fail(Errc::unavailable,
              "torch: the tensor is stored negated or conjugated; save tensor.resolve_neg().resolve_conj()");
}

/// Elements from the first to the last one, both included. Nothing: more than a storage can hold.
std::optional<std::uint64_t> reach_of(const Shape& shape, const Shape& strides) {
  std::uint64_t last = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) return 0;
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(shape[axis] - 1),
                               static_cast<std::uint64_t>(strides[axis]), &step) ||
        __builtin_add_overflow(last, step, &last) || last >= std::uint64_t{1} << 60)
      return std::nullopt;
  }
  return last + 1;
}

/// Whether elements are consecutive without gaps, last axis fastest. Strides of extents of 1 are ignored.
bool is_contiguous(const Shape& shape, const Shape& strides) {
  std::int64_t expected = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 1) continue;
    if (strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

Result<TorchDType> dtype_of(const Rebuild& rebuild, const Storage& storage) {
  if (!rebuild.has_dtype && storage.dtype) return *storage.dtype;
  if (!rebuild.has_dtype || storage.dtype) {
    return fail(Errc::corrupt,
                "torch: a tensor has its dtype from its storage or beside it, not both or neither");
  }
  const PickleNode dtype = rebuild.arguments.item(6);
  if (dtype.kind() != PickleKind::global || dtype.module() != "torch") {
    return fail(Errc::corrupt, "torch: {} is not a dtype", class_name(dtype));
  }
  return torch_dtype_from(dtype.name());
}

/// The elements of a dtype that Troupe lacks become bytes.
void carry(const TorchDType& dtype, TorchTensor& tensor) {
  tensor.carried = dtype.carried;
  if (!dtype.has_axis()) return;
  const auto bytes = static_cast<std::int64_t>(dtype.bytes);
  tensor.shape.push_back(bytes);
  if (tensor.strides.empty()) return;
  for (auto& stride : tensor.strides) stride *= bytes;
  tensor.strides.push_back(1);
}

/// Sets offset, bytes and CRC of a tensor whose shape is known; `element` is in bytes, `first` in elements.
Result<void> place_in_storage(const TorchArchive& archive, const Storage& storage, std::uint64_t element,
                              std::uint64_t first, TorchTensor& tensor) {
  const ZipEntry* entry = archive.files.find(fmt::format("data/{}", storage.key));
  if (entry == nullptr) return fail(Errc::corrupt, "torch: the archive has no storage {}", storage.key);
  const std::uint64_t unit = storage.dtype ? element : 1;
  if (entry->bytes % unit != 0 || entry->bytes / unit != storage.size) {
    return fail(Errc::corrupt, "torch: storage {} has {} bytes, not {} * {} as it says", storage.key,
                entry->bytes, storage.size, unit);
  }
  const std::uint64_t held = entry->bytes / element;
  const auto elements = static_cast<std::uint64_t>(elements_of(tensor.shape));
  const auto reach =
      tensor.strides.empty() ? std::optional(elements) : reach_of(tensor.shape, tensor.strides);
  if (!reach || first > held || *reach > held - first) {
    return fail(Errc::corrupt, "torch: {} elements from {} on leave storage {}, which has {}",
                reach.value_or(elements), first, storage.key, held);
  }
  tensor.offset = entry->offset + first * element;
  tensor.bytes = elements * element;
  tensor.stored_bytes = *reach * element;
  if (entry->crc != 0 && tensor.stored_bytes == entry->bytes) tensor.crc = entry->crc;
  return {};
}

/// What torch.save calls for a tensor; every part is memoised as by Python's pickler.
std::vector<std::byte> tensor_pickle(const TorchDType& dtype, const Shape& shape) {
  const std::string_view typed = torch_storage_class(dtype);
  const auto elements = elements_of(shape);
  PickleWriter pickle(2);
  const auto numbers = [&](const Shape& values) {
    if (values.size() > 3) pickle.mark();
    for (const std::int64_t value : values) pickle.integer(value);
    pickle.tuple(values.size());
    if (!values.empty()) pickle.remember();
  };
  pickle.global(kUtils, typed.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  pickle.global(typed.empty() ? "torch.storage" : "torch", typed.empty() ? "UntypedStorage" : typed);
  pickle.text("0");
  pickle.text("cpu");
  pickle.integer(typed.empty() ? elements * static_cast<std::int64_t>(dtype.bytes) : elements);
  pickle.tuple(5);
  pickle.remember();
  pickle.persistent_id();
  pickle.integer(0);
  numbers(shape);
  Shape strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * std::max<std::int64_t>(shape[axis], 1);
  }
  numbers(strides);
  pickle.boolean(false);
  pickle.global("collections", "OrderedDict");
  pickle.tuple(0);
  pickle.reduce();
  pickle.remember();
  if (typed.empty()) pickle.global("torch", torch_name(dtype));
  pickle.tuple(6);
  pickle.remember();
  pickle.reduce();
  pickle.remember();
  return pickle.finish();
}

void add_beginning(ZipWriter& zip, std::span<const std::byte> pickle) {
  zip.add("data.pkl", pickle);
  zip.add(".format_version", "1");
  zip.add(".storage_alignment", "64");
  zip.add("byteorder", "little");
}

/// The id distinguishes archives of different content; 40 digits, which no reader checks.
void add_end(ZipWriter& zip, std::uint64_t content) {
  zip.add("version", "3\n");
  zip.add(".data/serialization_id", fmt::format("{:020}{:020}", hash64("archive"), content));
  zip.finish();
}

}  // namespace

Result<TorchArchive> TorchArchive::open(std::span<const std::byte> bytes) {
  ZipArchive files = TRY(ZipArchive::open(bytes));
  if (const ZipEntry* order = files.find("byteorder")) {
    if (as_text(files.data(*order)) != "little") {
      return fail(Errc::corrupt, "torch: the byte order must be little; save on a little-endian machine");
    }
  }
  PickleDocument object = TRY(PickleDocument::parse(TRY(files.read("data.pkl")), kLimits));
  return TorchArchive{std::move(files), std::move(object)};
}

std::optional<PickleNode> torch_dict(const PickleNode& node) {
  if (node.kind() == PickleKind::dict) return node;
  const auto items = node.is_object_of("collections", "OrderedDict") ? node.items() : std::nullopt;
  return items && items->kind() == PickleKind::dict ? items : std::nullopt;
}

bool is_torch_tensor(const PickleNode& node) {
  return rebuild_of(node).has_value();
}

Result<TorchTensor> torch_tensor(const TorchArchive& archive, const PickleNode& node, ForeignTypes foreign) {
  const auto rebuild = rebuild_of(node);
  if (!rebuild) return fail(Errc::corrupt, "torch: expected a tensor, found {}", class_name(node));
  const PickleNode& arguments = rebuild->arguments;
  const Storage storage = TRY(storage_of(arguments.item(0)));
  TorchTensor tensor;
  const auto dtype = TRY(dtype_of(*rebuild, storage));
  if (!dtype.carried.empty() && foreign == ForeignTypes::refuse)
    return tl::unexpected(dtype_from_torch(dtype.carried).error());
  tensor.dtype = dtype.dtype;
  tensor.shape = TRY(shape_from_pickle(arguments.item(2)));
  const Shape strides = TRY(shape_from_pickle(arguments.item(3)));
  if (const auto shape = check_shape(tensor.shape); !shape) {
    return fail(Errc::corrupt, "torch: {}", shape.error().message);
  }
  const auto first = arguments.item(1).as_integer();
  if (!first || *first < 0 || strides.size() != tensor.shape.size()) {
    return fail(Errc::corrupt, "torch: a tensor needs an offset >= 0 and as many strides as extents");
  }
  TRY(check_marks(*rebuild));
  if (elements_of(tensor.shape) > 1 && !is_contiguous(tensor.shape, strides)) tensor.strides = strides;
  if (dtype.has_axis() && tensor.shape.size() >= kMaxAxes)
    return fail(Errc::unavailable, "torch: a {} of {} axes cannot be carried", dtype.carried,
                tensor.shape.size());
  TRY(place_in_storage(archive, storage, dtype.bytes, static_cast<std::uint64_t>(*first), tensor));
  if (!dtype.carried.empty()) carry(dtype, tensor);
  return tensor;
}

Result<TorchTensor> parse_torch_tensor(std::span<const std::byte> bytes, ForeignTypes foreign) {
  const TorchArchive archive = TRY(TorchArchive::open(bytes));
  return torch_tensor(archive, archive.object.root(), foreign);
}

Result<TorchTensorWriter> TorchTensorWriter::create(const TorchDType& dtype, const Shape& shape) {
  TRY(check_shape(shape));
  TorchTensorWriter writer;
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 58;
  if (elements_of(shape) > kMaxElements) {
    return fail(Errc::invalid_argument, "torch: the shape {} has more than 2^58 elements", to_string(shape));
  }
  writer.data_bytes_ = static_cast<std::uint64_t>(elements_of(shape)) * dtype.bytes;
  add_beginning(writer.zip_, tensor_pickle(dtype, shape));
  writer.zip_.begin("data/0", writer.data_bytes_);
  writer.head_ = writer.zip_.take();
  writer.total_bytes_ = writer.head_.size() + writer.data_bytes_ + writer.tail(0).size();
  return writer;
}

std::vector<std::byte> TorchTensorWriter::tail(std::uint32_t crc) const {
  ZipWriter zip = zip_;
  zip.end(crc);
  add_end(zip, crc);
  return zip.take();
}

std::vector<std::byte> torch_archive(std::span<const std::byte> pickle) {
  ZipWriter zip("archive");
  add_beginning(zip, pickle);
  add_end(zip, hash64(pickle));
  return zip.take();
}

}  // namespace troupe::core
