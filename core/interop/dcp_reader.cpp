#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/errors.hpp"
#include "core/interop/dcp_checks.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/torch_names.hpp"
#include "core/utf8.hpp"
#include "core/values/value.hpp"

namespace troupe::core {
namespace {

constexpr std::size_t kMostSkipped = 10'000;

/// An instance of a torch.distributed class, whichever module a version of PyTorch has it in.
bool is_a(const PickleNode& node, std::string_view name) {
  const auto called = node.callable();
  return called && called->kind() == PickleKind::global && called->name() == name &&
         called->module().starts_with("torch.distributed.");
}

/// Lookups search a state from its end, so a large state is ignored.
std::optional<PickleNode> found_in(const PickleNode& state, std::string_view name) {
  constexpr std::size_t kMostAttributes = 64;
  return state.size() <= kMostAttributes ? state.find(name) : std::nullopt;
}

/// An attribute of an object whose state is a dict; None counts as absent.
std::optional<PickleNode> attribute(const PickleNode& node, std::string_view name) {
  const auto state = node.state();
  const auto found = state ? found_in(*state, name) : std::nullopt;
  return found && found->kind() != PickleKind::none ? found : std::nullopt;
}

Result<PickleNode> needed_attribute(const PickleNode& node, std::string_view name) {
  const auto found = attribute(node, name);
  if (!found) return fail(Errc::corrupt, "dcp: a {} has no attribute '{}'", class_name(node), name);
  return *found;
}

Result<std::string_view> needed_text(const PickleNode& node, std::string_view name) {
  const auto text = TRY(needed_attribute(node, name)).as_text();
  if (text && text->size() <= kLongestDcpName) return *text;
  return fail(Errc::corrupt, "dcp: '{}' of a {} must be a text of at most {} bytes", name, class_name(node),
              kLongestDcpName);
}

Result<std::uint64_t> needed_count(const PickleNode& node, std::string_view name) {
  // More than any file has; sums stay far from overflow.
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;
  const auto number = TRY(needed_attribute(node, name)).as_integer();
  if (!number || *number < 0 || *number >= kLargest) {
    return fail(Errc::corrupt, "dcp: '{}' of a {} must be an integer from 0 to 2^62", name, class_name(node));
  }
  return static_cast<std::uint64_t>(*number);
}

/// How much more of something may follow. A pickle can store a value once and refer to it often; PyTorch
/// takes some 70 bytes per entry and 100 per chunk, so its checkpoints stay far below these limits, and the
/// memory for any checkpoint is a small multiple of its size.
class Allowance {
 public:
  Allowance(const char* what, std::size_t pickle_bytes, std::size_t bytes_for_one)
      : what_(what), most_(kAlways + pickle_bytes / bytes_for_one), left_(most_) {}

  Result<void> take(std::size_t count) {
    if (count > left_) {
      return fail(Errc::corrupt,
                  "dcp: more than {} {}, which a pickle of this size does not hold; it is damaged", most_,
                  what_);
    }
    left_ -= count;
    return {};
  }

 private:
  static constexpr std::size_t kAlways = 4096;
  const char* what_;
  std::size_t most_;
  std::size_t left_;
};

/// One entry of storage_data.
struct Stored {
  std::string_view key;
  std::optional<Shape> offset;  ///< empty for anything but a tensor
  DcpPlace place;
  bool transformed = false;
};

bool operator<(const Stored& a, const Stored& b) {
  return std::tie(a.key, a.offset) < std::tie(b.key, b.offset);
}

struct OrderByKey {
  bool operator()(const Stored& a, std::string_view b) const { return a.key < b; }
  bool operator()(std::string_view a, const Stored& b) const { return a < b.key; }
};

class Reader {
 public:
  Reader(const PickleDocument& document, std::size_t bytes)
      : document_(document),
        entries_("entries", bytes, 16),
        places_("places", bytes, 16),
        paths_allowed_("paths", bytes, 16),
        chunks_("chunks", bytes, 16),
        axes_("axes", bytes, 2),
        path_keys_("keys of paths", bytes, 8),
        path_bytes_("bytes of paths", bytes, 1) {}
  Result<DcpMetadata> read();

 private:
  using Path = std::pair<std::string_view, PickleNode>;

  Result<void> read_storage(const PickleNode& storage);
  Result<void> read_paths(const PickleNode& planner);
  Result<std::uint32_t> file_of(std::string_view name);
  Result<void> read_entry(std::string_view key, const PickleNode& entry);
  Result<void> read_tensor(std::string_view key, const PickleNode& entry);
  Result<void> read_chunks(const PickleNode& chunks, DcpTensor& tensor, bool& transformed);
  Result<void> read_item(std::string_view key);
  Result<Shape> read_shape(const PickleNode& node);
  std::span<const Stored> stored_of(std::string_view key) const;
  void skip(std::string_view key, std::string reason);
  Result<KeyPath> path_of(std::string_view key);

  const PickleDocument& document_;
  DcpMetadata result_;
  std::unordered_map<std::string_view, std::uint32_t> files_;
  std::vector<Stored> stored_;  ///< sorted
  std::vector<Path> paths_;     ///< sorted by key
  std::size_t unlisted_ = 0;
  Allowance entries_;
  Allowance places_;
  Allowance paths_allowed_;
  Allowance chunks_;
  Allowance axes_;
  Allowance path_keys_;
  Allowance path_bytes_;
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
  if (const auto planner = attribute(root, "planner_data")) TRY(read_paths(*planner));
  TRY(read_storage(storage));
  TRY(entries_.take(entries.size()));
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto key = entries.key(i).as_text();
    if (!key || key->size() > kLongestDcpName) {
      return fail(Errc::corrupt, "dcp: '{}' is not a name of at most {} bytes",
                  beginning_of(key.value_or("")), kLongestDcpName);
    }
    if (!seen.insert(*key).second) return fail(Errc::corrupt, "dcp: '{}' comes twice", beginning_of(*key));
    TRY(read_entry(*key, entries.value(i)));
  }
  if (unlisted_ > 0) result_.skipped.push_back({"...", fmt::format("{} more are not listed", unlisted_)});
  return std::move(result_);
}

Result<void> Reader::read_paths(const PickleNode& planner) {
  if (planner.kind() != PickleKind::dict) return {};
  TRY(paths_allowed_.take(planner.size()));
  for (std::size_t i = 0; i < planner.size(); ++i) {
    const auto key = planner.key(i).as_text();
    if (key && key->size() <= kLongestDcpName) paths_.emplace_back(*key, planner.value(i));
  }
  std::stable_sort(paths_.begin(), paths_.end(),
                   [](const Path& a, const Path& b) { return a.first < b.first; });
  return {};
}

Result<void> Reader::read_storage(const PickleNode& storage) {
  TRY(places_.take(storage.size()));
  stored_.reserve(storage.size());
  for (std::size_t i = 0; i < storage.size(); ++i) {
    const PickleNode index = storage.key(i);
    const PickleNode info = storage.value(i);
    if (!is_a(index, "MetadataIndex") || !is_a(info, "_StorageInfo")) {
      return fail(Errc::corrupt, "dcp: storage_data maps {} to {}, not MetadataIndex to _StorageInfo",
                  class_name(index), class_name(info));
    }
    Stored stored;
    stored.key = TRY(needed_text(index, "fqn"));
    if (const auto offset = attribute(index, "offset")) stored.offset = TRY(read_shape(*offset));
    stored.place.file = TRY(file_of(TRY(needed_text(info, "relative_path"))));
    stored.place.offset = TRY(needed_count(info, "offset"));
    stored.place.bytes = TRY(needed_count(info, "length"));
    const auto transforms = attribute(info, "transform_descriptors");
    stored.transformed = transforms && (transforms->kind() != PickleKind::list || transforms->size() > 0);
    stored_.push_back(std::move(stored));
  }
  std::sort(stored_.begin(), stored_.end());
  const auto twice = std::adjacent_find(stored_.begin(), stored_.end(),
                                        [](const Stored& a, const Stored& b) { return !(a < b); });
  if (twice == stored_.end()) return {};
  return fail(Errc::corrupt, "dcp: storage_data has two places for '{}' at {}", twice->key,
              twice->offset ? to_string(*twice->offset) : "None");
}

std::span<const Stored> Reader::stored_of(std::string_view key) const {
  const auto [first, last] = std::equal_range(stored_.begin(), stored_.end(), key, OrderByKey{});
  return {first, last};
}

void Reader::skip(std::string_view key, std::string reason) {
  if (result_.skipped.size() < kMostSkipped) {
    result_.skipped.push_back({std::string(key), std::move(reason)});
  } else {
    ++unlisted_;
  }
}

Result<Shape> Reader::read_shape(const PickleNode& node) {
  Shape shape = TRY(shape_from_pickle(node));
  TRY(axes_.take(shape.size()));
  return shape;
}

Result<std::uint32_t> Reader::file_of(std::string_view name) {
  const auto [place, is_new] = files_.try_emplace(name, static_cast<std::uint32_t>(result_.files.size()));
  if (is_new) {
    TRY(check_dcp_file_name(name));
    result_.files.emplace_back(name);
  }
  return place->second;
}

/// Empty for a path deeper than values may be: its entry keeps its name.
Result<KeyPath> Reader::path_of(std::string_view key) {
  const auto found = std::lower_bound(paths_.begin(), paths_.end(), key,
                                      [](const Path& a, std::string_view b) { return a.first < b; });
  if (found == paths_.end() || found->first != key) return KeyPath{};
  const PickleNode& node = found->second;
  const bool is_path = node.kind() == PickleKind::tuple || node.kind() == PickleKind::list;
  if (!is_path || node.size() > kMaxValueDepth) return KeyPath{};
  TRY(path_keys_.take(node.size()));
  KeyPath path;
  for (std::size_t i = 0; i < node.size(); ++i) {
    if (const auto text = node.item(i).as_text()) {
      TRY(path_bytes_.take(text->size()));
      path.emplace_back(std::string(*text));
    } else if (const auto number = node.item(i).as_integer()) {
      path.emplace_back(*number);
    } else {
      return KeyPath{};
    }
  }
  return path;
}

Result<void> Reader::read_entry(std::string_view key, const PickleNode& entry) {
  if (is_a(entry, "TensorStorageMetadata")) return read_tensor(key, entry);
  if (is_a(entry, "BytesStorageMetadata")) return read_item(key);
  skip(key, "it is described by a " + class_name(entry));
  return {};
}

Result<void> Reader::read_item(std::string_view key) {
  const auto places = stored_of(key);
  if (places.empty()) {
    skip(key, "storage_data has no place for it");
  } else if (places.front().transformed) {
    skip(key, "its bytes are compressed or transformed");
  } else {
    auto path = TRY(path_of(key));
    result_.items.push_back({std::string(key), places.front().place, std::move(path)});
  }
  return {};
}

/// The dtype of a TensorProperties, whose state is a tuple, or in old versions a dict.
Result<PickleNode> dtype_node(std::string_view key, const PickleNode& properties) {
  const auto state = properties.state();
  std::optional<PickleNode> dtype;
  if (state && state->kind() == PickleKind::tuple && state->size() >= 5) dtype = state->item(0);
  if (state && state->kind() == PickleKind::dict) dtype = found_in(*state, "dtype");
  if (dtype && dtype->kind() == PickleKind::global && dtype->module() == "torch") return *dtype;
  return fail(Errc::corrupt, "dcp: the properties of '{}' ({}) have no dtype", key, class_name(properties));
}

void add_axis(DcpTensor& tensor, std::int64_t extent) {
  tensor.shape.push_back(extent);
  for (auto& chunk : tensor.chunks) {
    chunk.box.offset.push_back(0);
    chunk.box.extent.push_back(extent);
  }
}

Result<void> Reader::read_tensor(std::string_view key, const PickleNode& entry) {
  const PickleNode named = TRY(dtype_node(key, TRY(needed_attribute(entry, "properties"))));
  const Result<TorchDType> dtype = torch_dtype_from(named.name());
  if (!dtype) {
    skip(key, dtype.error().message);
    return {};
  }
  DcpTensor tensor;
  tensor.key = key;
  tensor.dtype = dtype->dtype;
  tensor.carried = dtype->carried;
  tensor.shape = TRY(read_shape(TRY(needed_attribute(entry, "size"))));
  bool transformed = false;
  TRY(read_chunks(TRY(needed_attribute(entry, "chunks")), tensor, transformed));
  if (transformed || (dtype->has_axis() && tensor.shape.size() >= kMaxAxes)) {
    skip(key, transformed ? "its bytes are compressed or transformed" : "it has too many axes");
    return {};
  }
  if (dtype->has_axis()) add_axis(tensor, static_cast<std::int64_t>(dtype->bytes));
  TRY(check_dcp_tensor(tensor));
  tensor.path = TRY(path_of(key));
  result_.tensors.push_back(std::move(tensor));
  return {};
}

Result<void> Reader::read_chunks(const PickleNode& chunks, DcpTensor& tensor, bool& transformed) {
  if (chunks.kind() != PickleKind::list) {
    return fail(Errc::corrupt, "dcp: the chunks of '{}' are a {}, not a list", tensor.key,
                name_of(chunks.kind()));
  }
  const auto places = stored_of(tensor.key);
  // PyTorch describes a scalar once for every rank that has it, but writes it once.
  const std::size_t count = tensor.shape.empty() ? std::min<std::size_t>(chunks.size(), 1) : chunks.size();
  TRY(chunks_.take(count));
  tensor.chunks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PickleNode chunk = chunks.item(i);
    DcpChunk result;
    result.box.offset = TRY(read_shape(TRY(needed_attribute(chunk, "offsets"))));
    result.box.extent = TRY(read_shape(TRY(needed_attribute(chunk, "sizes"))));
    const auto& extent = result.box.extent;
    // Ranks beyond the end of an uneven tensor have empty chunks, all at the same place.
    if (std::find(extent.begin(), extent.end(), 0) != extent.end()) continue;
    const Stored* stored = nullptr;
    if (!places.empty()) {
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
  return Reader(document, bytes.size()).read();
}

}  // namespace troupe::core
