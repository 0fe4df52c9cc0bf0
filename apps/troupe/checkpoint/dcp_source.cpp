#include "apps/troupe/checkpoint/dcp_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "actors/world/storage/posix.hpp"
#include "apps/troupe/checkpoint/mapped_file.hpp"
#include "apps/troupe/checkpoint/meter.hpp"
#include "apps/troupe/checkpoint/text.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"
#include "core/interop/plain_data.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using core::Value;

Value shape_value(const core::Shape& shape) {
  Value::List items;
  for (const auto extent : shape) items.emplace_back(extent);
  return items;
}

std::optional<core::Shape> shape_from(const Value* value) {
  if (value == nullptr || value->as_list() == nullptr) return std::nullopt;
  core::Shape shape;
  for (const auto& item : *value->as_list()) {
    if (!item.as_int() || *item.as_int() < 0) return std::nullopt;
    shape.push_back(*item.as_int());
  }
  return shape;
}

/// Values by their paths, in the order in which they come.
class ValueTree {
 public:
  /// False when something else is in the way.
  bool put(std::span<const core::Key> path, Value& value) {
    const auto [place, is_new] = places_.try_emplace(path.front(), entries_.size());
    if (is_new) {
      entries_.push_back({path.front(), {}, {}});
      if (path.size() > 1) entries_.back().inner = std::make_unique<ValueTree>();
    }
    auto& entry = entries_[place->second];
    if (path.size() > 1) return entry.inner && entry.inner->put(path.subspan(1), value);
    if (!is_new) return false;
    entry.value = std::move(value);
    return true;
  }

  Value::Map take() {
    std::vector<Value::Entry> entries;
    entries.reserve(entries_.size());
    for (auto& [key, value, inner] : entries_)
      entries.push_back({std::move(key), inner ? Value(inner->take()) : std::move(value)});
    return Value::Map::from_entries(std::move(entries)).value();
  }

 private:
  struct Entry {
    core::Key key;
    Value value;
    std::unique_ptr<ValueTree> inner;  ///< instead of the value
  };
  std::map<core::Key, std::size_t> places_;
  std::vector<Entry> entries_;
};

std::optional<core::ManifestObject> object_from(Value& value) {
  auto* map = value.as_map();
  if (map == nullptr) return std::nullopt;
  const auto* key = map->find("key");
  auto* content = map->find("value");
  auto grid = shape_from(map->find("grid"));
  auto cell = shape_from(map->find("cell"));
  if (key == nullptr || key->as_string() == nullptr || content == nullptr || !grid || !cell)
    return std::nullopt;
  return core::ManifestObject{*key->as_string(), std::move(*grid), std::move(*cell), std::move(*content)};
}

/// What dcp_values_of() made; it is moved from when it is that.
bool take_own_values(Value& value, core::Manifest& manifest) {
  auto* map = value.as_map();
  const auto* step = map != nullptr ? map->find("step") : nullptr;
  auto* common = map != nullptr ? map->find("common") : nullptr;
  auto* topology = map != nullptr ? map->find("topology") : nullptr;
  auto* objects = map != nullptr ? map->find("objects") : nullptr;
  if (step == nullptr || !step->as_int() || *step->as_int() < 0 || common == nullptr || topology == nullptr ||
      objects == nullptr || objects->as_list() == nullptr)
    return false;
  std::vector<core::ManifestObject> cells;
  for (auto& item : *objects->as_list()) {
    auto object = object_from(item);
    if (!object) return false;
    cells.push_back(std::move(*object));
  }
  manifest.step = core::StepCount{*step->as_int()};
  manifest.common = std::move(*common);
  manifest.topology = std::move(*topology);
  manifest.objects = std::move(cells);
  return true;
}

/// Containers within each other, without the innermost empty one.
std::size_t levels_of(const Value& value) {
  std::size_t levels = 0;
  const auto look = [&](const Value& inner) { levels = std::max(levels, 1 + levels_of(inner)); };
  if (const auto* map = value.as_map()) {
    for (const auto& entry : map->entries()) look(entry.value);
  }
  const auto* items = value.as_list() != nullptr ? value.as_list() : value.as_tuple();
  if (items != nullptr) std::for_each(items->begin(), items->end(), look);
  return levels;
}

/// What values may take whatever the size of the files: a million small ones.
constexpr std::uint64_t kValueBytes = std::uint64_t{48} << 20;
constexpr std::uint64_t kValueBytesPerByte = 4;
constexpr std::size_t kReasonColumns = 300;

class DcpReader {
 public:
  DcpReader(Source& source, const actors::PosixStorage& storage, core::DcpMetadata metadata, bool check)
      : source_(source), storage_(storage), metadata_(std::move(metadata)), check_(check) {}

  Result<void> read() {
    TRY(open_files());
    for (auto& skipped : metadata_.skipped)
      source_.left_out.push_back({std::move(skipped.key), std::move(skipped.reason)});
    std::uint64_t bytes = 0;
    for (const auto& tensor : metadata_.tensors) {
      for (const auto& chunk : tensor.chunks) bytes += chunk.place.bytes;
    }
    Meter meter("checking", bytes);
    auto& tensors = source_.manifest.tensors;
    tensors.reserve(metadata_.tensors.size());
    for (auto& tensor : metadata_.tensors) TRY(add_tensor(std::exchange(tensor, {}), meter));
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const auto& a, const auto& b) { return a.key == b.key; });
    if (twice != tensors.end()) return core::fail(Errc::corrupt, "tensor '{}' is there twice", twice->key);
    return add_items();
  }

 private:
  Result<void> open_files() {
    Result<void> refused;  // what is there and is no file
    const auto good = core::check_dcp_files(metadata_, [&](const std::string& name) {
      const auto size = source_.storage->size(name);
      if (!size && size.error().code != Errc::not_found) refused = Result<void>(tl::unexpected(size.error()));
      return size ? std::optional(*size) : std::nullopt;
    });
    TRY(std::move(refused));
    TRY(Result<void>(good));
    for (const auto& name : metadata_.files) {
      files_.push_back(TRY(MappedFile::open(storage_, name)));
      source_.manifest.files.push_back({name, files_.back().bytes().size(), 0, 0});
    }
    return {};
  }

  Result<std::span<const std::byte>> bytes_at(const core::DcpPlace& place) const {
    const auto bytes = files_[place.file].bytes();
    if (place.offset > bytes.size() || place.bytes > bytes.size() - place.offset)
      return core::fail(Errc::corrupt, "{} became shorter while it was read", metadata_.files[place.file]);
    return bytes.subspan(place.offset, place.bytes);
  }

  Result<void> add_tensor(const core::DcpTensor& tensor, Meter& meter) {
    core::ManifestTensor described{tensor.key, tensor.dtype, tensor.shape, {}};
    described.shards.reserve(tensor.chunks.size());
    for (const auto& chunk : tensor.chunks) {
      const auto bytes = TRY(bytes_at(chunk.place));
      auto elements = core::dcp_chunk_elements(tensor, chunk, bytes, check_);
      if (!elements)
        return core::fail(elements.error().code, "{}, {} of '{}': {}", metadata_.files[chunk.place.file],
                          to_string(chunk.box), tensor.key, elements.error().message);
      const auto begin =
          static_cast<std::uint64_t>(elements->data() - files_[chunk.place.file].bytes().data());
      described.shards.push_back({chunk.box, chunk.place.file, begin, begin + elements->size(), 0});
      files_[chunk.place.file].release(bytes);
      if (check_) meter.add(chunk.place.bytes);
    }
    std::sort(described.shards.begin(), described.shards.end(),
              [](const auto& a, const auto& b) { return a.box < b.box; });
    source_.manifest.tensors.push_back(std::move(described));
    return {};
  }

  Result<void> add_items() {
    core::ValueBudget budget{kValueBytes};
    for (const auto& item : metadata_.items) budget.bytes += kValueBytesPerByte * item.place.bytes;
    ValueTree trainer;
    for (auto& item : metadata_.items) {
      const auto bytes = TRY(bytes_at(item.place));
      auto value = core::parse_torch_value(bytes, budget);
      files_[item.place.file].release(bytes);
      if (!value) {
        leave_out(item, value.error().message);
      } else if (item.key == kDcpValuesKey && take_own_values(*value, source_.manifest)) {
        source_.has_values = true;
      } else if (levels_of(*value) + item.path.size() + 2 > core::kMaxValueDepth) {
        leave_out(item, fmt::format("it has more than {} levels", core::kMaxValueDepth));
      } else if (item.path.empty() || !trainer.put(item.path, *value)) {
        const core::Key name = item.key;
        if (!trainer.put({&name, 1}, *value)) leave_out(item, "another value has its name");
      }
    }
    if (!source_.has_values) source_.manifest.common = trainer.take();
    return {};
  }

  void leave_out(core::DcpItem& item, std::string reason) {
    source_.left_out.push_back({std::move(item.key), shortened(std::move(reason), kReasonColumns)});
  }

  Source& source_;
  const actors::PosixStorage& storage_;
  core::DcpMetadata metadata_;
  bool check_;
  std::vector<MappedFile> files_;
};

}  // namespace

Value dcp_values_of(const core::Manifest& manifest) {
  Value::List objects;
  for (const auto& object : manifest.objects) {
    objects.push_back(Value::Map{{"key", object.key},
                                 {"grid", shape_value(object.grid)},
                                 {"cell", shape_value(object.cell)},
                                 {"value", object.value}});
  }
  return Value::Map{{"step", manifest.step.value},
                    {"save", manifest.save},
                    {"topology", manifest.topology},
                    {"common", manifest.common},
                    {"objects", std::move(objects)}};
}

Result<Source> open_dcp(const std::string& directory, bool check, actors::Links links) {
  auto storage = TRY(actors::PosixStorage::open(directory, links));
  const auto path = std::filesystem::path(directory) / core::kDcpMetadataName;
  const auto file = TRY(MappedFile::open(*storage, std::string(core::kDcpMetadataName)));
  auto metadata = core::parse_dcp_metadata(file.bytes());
  if (!metadata) return core::fail(metadata.error().code, "{}: {}", path.string(), metadata.error().message);
  file.release(file.bytes());
  const auto& files = *storage;
  Source source{SourceForm::dcp, directory, std::move(storage), {}, false, {}};
  TRY(DcpReader(source, files, std::move(*metadata), check).read());
  return source;
}

}  // namespace troupe::apps
