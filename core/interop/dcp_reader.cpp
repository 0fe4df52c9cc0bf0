#include <algorithm>
#include <unordered_map>

#include "core/interop/dcp_checks.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/torch_names.hpp"

namespace troupe::core {
namespace {

/// An instance of a class of torch.distributed, whichever module a version of PyTorch keeps it in.
bool is_a(const PickleNode& node, std::string_view name) {
  const auto called = node.callable();
  return called && called->kind() == PickleKind::global && called->name() == name &&
         called->module().starts_with("torch.distributed.");
}

/// An attribute of an object whose state is a dict; None counts as nothing.
std::optional<PickleNode> attribute(const PickleNode& node, std::string_view name) {
  const auto state = node.state();
  const auto found = state ? state->find(name) : std::nullopt;
  return found && found->kind() != PickleKind::none ? found : std::nullopt;
}

Result<PickleNode> needed_attribute(const PickleNode& node, std::string_view name) {
  const auto found = attribute(node, name);
  if (!found) return fail(Errc::corrupt, "dcp: a {} has no attribute '{}'", class_name(node), name);
  return *found;
}

Result<std::string_view> needed_text(const PickleNode& node, std::string_view name) {
  const auto text = TRY(needed_attribute(node, name)).as_text();
  if (!text) return fail(Errc::corrupt, "dcp: '{}' of a {} must be a text", name, class_name(node));
  return *text;
}

Result<std::uint64_t> needed_count(const PickleNode& node, std::string_view name) {
  // More than any file has; sums stay far from an overflow.
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;
  const auto number = TRY(needed_attribute(node, name)).as_integer();
  if (!number || *number < 0 || *number >= kLargest) {
    return fail(Errc::corrupt, "dcp: '{}' of a {} must be an integer from 0 to 2^62", name, class_name(node));
  }
  return static_cast<std::uint64_t>(*number);
}

/// One entry of storage_data.
struct Stored {
  std::optional<Shape> offset;  ///< nothing for what is no tensor
  DcpPlace place;
  bool transformed = false;
};

using StoredByKey = std::unordered_map<std::string_view, std::vector<Stored>>;

class Reader {
 public:
  explicit Reader(const PickleDocument& document) : document_(document) {}
  Result<DcpMetadata> read();

 private:
  Result<void> read_storage(const PickleNode& storage);
  Result<std::uint32_t> file_of(std::string_view name);
  Result<void> read_entry(std::string_view key, const PickleNode& entry);
  Result<void> read_tensor(std::string_view key, const PickleNode& entry);
  Result<void> read_chunks(const PickleNode& chunks, DcpTensor& tensor, bool& transformed);
  void read_item(std::string_view key);
  void skip(std::string_view key, std::string reason) {
    result_.skipped.push_back({std::string(key), std::move(reason)});
  }
  KeyPath path_of(std::string_view key) const;

  const PickleDocument& document_;
  DcpMetadata result_;
  std::unordered_map<std::string_view, std::uint32_t> files_;
  StoredByKey stored_;
  std::unordered_map<std::string_view, PickleNode> paths_;
};

Result<DcpMetadata> Reader::read() {
  const PickleNode root = document_.root();
  if (!is_a(root, "Metadata")) {
    return fail(Errc::corrupt, "dcp: expected torch.distributed.checkpoint.metadata.Metadata, found {}",
                class_name(root));
  }
  const PickleNode entries = TRY(needed_attribute(root, "state_dict_metadata"));
  const PickleNode storage = TRY(needed_attribute(root, "storage_data"));
  if (entries.kind() != PickleKind::dict || storage.kind() != PickleKind::dict) {
    return fail(Errc::corrupt, "dcp: state_dict_metadata is a {}, storage_data a {}; both must be dicts",
                name_of(entries.kind()), name_of(storage.kind()));
  }
  const auto planner = attribute(root, "planner_data");
  if (planner && planner->kind() == PickleKind::dict) {
    for (std::size_t i = 0; i < planner->size(); ++i) {
      if (const auto key = planner->key(i).as_text()) paths_.emplace(*key, planner->value(i));
    }
  }
  TRY(read_storage(storage));
  std::unordered_map<std::string_view, bool> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto key = entries.key(i).as_text();
    if (!key || !seen.emplace(*key, true).second) {
      return fail(Errc::corrupt, "dcp: '{}' comes twice or is no name", key.value_or(""));
    }
    TRY(read_entry(*key, entries.value(i)));
  }
  return std::move(result_);
}

Result<void> Reader::read_storage(const PickleNode& storage) {
  for (std::size_t i = 0; i < storage.size(); ++i) {
    const PickleNode index = storage.key(i);
    const PickleNode info = storage.value(i);
    if (!is_a(index, "MetadataIndex") || !is_a(info, "_StorageInfo")) {
      return fail(Errc::corrupt, "dcp: storage_data maps {} to {}, not MetadataIndex to _StorageInfo",
                  class_name(index), class_name(info));
    }
    Stored stored;
    if (const auto offset = attribute(index, "offset")) stored.offset = TRY(shape_from_pickle(*offset));
    stored.place.file = TRY(file_of(TRY(needed_text(info, "relative_path"))));
    stored.place.offset = TRY(needed_count(info, "offset"));
    stored.place.bytes = TRY(needed_count(info, "length"));
    const auto transforms = attribute(info, "transform_descriptors");
    stored.transformed = transforms && (transforms->kind() != PickleKind::list || transforms->size() > 0);
    stored_[TRY(needed_text(index, "fqn"))].push_back(std::move(stored));
  }
  for (auto& [key, places] : stored_) {
    std::sort(places.begin(), places.end(),
              [](const Stored& a, const Stored& b) { return a.offset < b.offset; });
    const auto twice = std::adjacent_find(
        places.begin(), places.end(), [](const Stored& a, const Stored& b) { return a.offset == b.offset; });
    if (twice != places.end()) {
      return fail(Errc::corrupt, "dcp: storage_data has two places for '{}' at {}", key,
                  twice->offset ? to_string(*twice->offset) : "None");
    }
  }
  return {};
}

Result<std::uint32_t> Reader::file_of(std::string_view name) {
  const auto [place, is_new] = files_.try_emplace(name, static_cast<std::uint32_t>(result_.files.size()));
  if (is_new) {
    TRY(check_dcp_file_name(name));
    result_.files.emplace_back(name);
  }
  return place->second;
}

KeyPath Reader::path_of(std::string_view key) const {
  const auto found = paths_.find(key);
  if (found == paths_.end()) return {};
  const PickleNode& node = found->second;
  KeyPath path;
  if (node.kind() != PickleKind::tuple && node.kind() != PickleKind::list) return path;
  for (std::size_t i = 0; i < node.size(); ++i) {
    if (const auto text = node.item(i).as_text()) {
      path.emplace_back(std::string(*text));
    } else if (const auto number = node.item(i).as_integer()) {
      path.emplace_back(*number);
    } else {
      return {};
    }
  }
  return path;
}

Result<void> Reader::read_entry(std::string_view key, const PickleNode& entry) {
  if (is_a(entry, "TensorStorageMetadata")) return read_tensor(key, entry);
  if (is_a(entry, "BytesStorageMetadata")) {
    read_item(key);
  } else {
    skip(key, "it is described by a " + class_name(entry));
  }
  return {};
}

void Reader::read_item(std::string_view key) {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return skip(key, "storage_data has no place for it");
  const Stored& stored = found->second.front();
  if (stored.transformed) return skip(key, "its bytes are compressed or transformed");
  result_.items.push_back({std::string(key), stored.place, path_of(key)});
}

/// The dtype of a TensorProperties, whose state is a tuple, in old versions a dict.
Result<PickleNode> dtype_node(std::string_view key, const PickleNode& properties) {
  const auto state = properties.state();
  std::optional<PickleNode> dtype;
  if (state && state->kind() == PickleKind::tuple && state->size() >= 5) dtype = state->item(0);
  if (state && state->kind() == PickleKind::dict) dtype = state->find("dtype");
  if (dtype && dtype->kind() == PickleKind::global && dtype->module() == "torch") return *dtype;
  return fail(Errc::corrupt, "dcp: the properties of '{}' ({}) have no dtype", key, class_name(properties));
}

Result<void> Reader::read_tensor(std::string_view key, const PickleNode& entry) {
  const PickleNode named = TRY(dtype_node(key, TRY(needed_attribute(entry, "properties"))));
  const Result<DType> dtype = dtype_from_torch(named.name());
  if (!dtype) {
    skip(key, dtype.error().message);
    return {};
  }
  DcpTensor tensor;
  tensor.key = key;
  tensor.dtype = *dtype;
  tensor.shape = TRY(shape_from_pickle(TRY(needed_attribute(entry, "size"))));
  bool transformed = false;
  TRY(read_chunks(TRY(needed_attribute(entry, "chunks")), tensor, transformed));
  if (transformed) {
    skip(key, "its bytes are compressed or transformed");
    return {};
  }
  TRY(check_dcp_tensor(tensor));
  tensor.path = path_of(key);
  result_.tensors.push_back(std::move(tensor));
  return {};
}

Result<void> Reader::read_chunks(const PickleNode& chunks, DcpTensor& tensor, bool& transformed) {
  if (chunks.kind() != PickleKind::list) {
    return fail(Errc::corrupt, "dcp: the chunks of '{}' are a {}, not a list", tensor.key,
                name_of(chunks.kind()));
  }
  const auto found = stored_.find(tensor.key);
  // PyTorch describes a scalar once for every rank that has it, and writes it once.
  const std::size_t count = tensor.shape.empty() ? std::min<std::size_t>(chunks.size(), 1) : chunks.size();
  for (std::size_t i = 0; i < count; ++i) {
    const PickleNode chunk = chunks.item(i);
    DcpChunk result;
    result.box.offset = TRY(shape_from_pickle(TRY(needed_attribute(chunk, "offsets"))));
    result.box.extent = TRY(shape_from_pickle(TRY(needed_attribute(chunk, "sizes"))));
    const auto& extent = result.box.extent;
    // Ranks beyond the end of an uneven tensor have empty chunks, all at one place.
    if (std::find(extent.begin(), extent.end(), 0) != extent.end()) continue;
    const Stored* stored = nullptr;
    if (found != stored_.end()) {
      const auto& places = found->second;
      const auto at =
          std::lower_bound(places.begin(), places.end(), result.box.offset,
                           [](const Stored& a, const Shape& b) { return !a.offset || *a.offset < b; });
      if (at != places.end() && at->offset == result.box.offset) stored = &*at;
      const bool from_zero = std::count(result.box.offset.begin(), result.box.offset.end(), 0) ==
                             static_cast<std::ptrdiff_t>(result.box.offset.size());
      if (stored == nullptr && from_zero && !places.front().offset) stored = &places.front();
    }
    if (stored == nullptr) {
      return fail(Errc::corrupt, "dcp: storage_data has no place for '{}' at {}", tensor.key,
                  to_string(result.box.offset));
    }
    transformed = transformed || stored->transformed;
    result.place = stored->place;
    tensor.chunks.push_back(std::move(result));
  }
  return {};
}

}  // namespace

Result<DcpMetadata> parse_dcp_metadata(std::span<const std::byte> bytes, const PickleLimits& limits) {
  const PickleDocument document = TRY(PickleDocument::parse(bytes, limits));
  return Reader(document).read();
}

}  // namespace troupe::core
