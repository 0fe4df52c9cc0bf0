#include "apps/troupe/checkpoint/dcp_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "actors/world/storage/posix.hpp"
#include "apps/troupe/checkpoint/mapped_file.hpp"
#include "apps/troupe/checkpoint/meter.hpp"
#include "core/checkpoint/values_text.hpp"
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

/// Puts a value at its path; false when something else is in the way.
bool place(Value::Map& map, std::span<const core::Key> path, Value value) {
  if (path.size() == 1) {
    if (map.find(path.front()) != nullptr) return false;
    map.set(path.front(), std::move(value));
    return true;
  }
  if (map.find(path.front()) == nullptr) map.set(path.front(), Value::Map{});
  auto* inner = map.find(path.front())->as_map();
  return inner != nullptr && place(*inner, path.subspan(1), std::move(value));
}

std::optional<core::ManifestObject> object_from(const Value& value) {
  const auto* map = value.as_map();
  if (map == nullptr) return std::nullopt;
  const auto* key = map->find("key");
  const auto* content = map->find("value");
  auto grid = shape_from(map->find("grid"));
  auto cell = shape_from(map->find("cell"));
  if (key == nullptr || key->as_string() == nullptr || content == nullptr || !grid || !cell)
    return std::nullopt;
  return core::ManifestObject{*key->as_string(), std::move(*grid), std::move(*cell), *content};
}

/// What dcp_values_of() made.
bool take_own_values(const Value& value, core::Manifest& manifest) {
  const auto* map = value.as_map();
  const auto* step = map != nullptr ? map->find("step") : nullptr;
  const auto* common = map != nullptr ? map->find("common") : nullptr;
  const auto* topology = map != nullptr ? map->find("topology") : nullptr;
  const auto* objects = map != nullptr ? map->find("objects") : nullptr;
  if (step == nullptr || !step->as_int() || *step->as_int() < 0 || common == nullptr || topology == nullptr ||
      objects == nullptr || objects->as_list() == nullptr)
    return false;
  std::vector<core::ManifestObject> cells;
  for (const auto& item : *objects->as_list()) {
    auto object = object_from(item);
    if (!object) return false;
    cells.push_back(std::move(*object));
  }
  manifest.step = core::Step{*step->as_int()};
  manifest.common = *common;
  manifest.topology = *topology;
  manifest.objects = std::move(cells);
  return true;
}

/// Whether a manifest can hold the value, so many levels down.
Result<void> check_storable(const Value& value, std::size_t levels) {
  Value wrapped = value;
  for (std::size_t i = 0; i < levels; ++i) wrapped = Value::List{std::move(wrapped)};
  TRY(core::value_text(wrapped));
  return {};
}

class DcpReader {
 public:
  DcpReader(Source& source, const core::DcpMetadata& metadata, bool check)
      : source_(source), metadata_(metadata), check_(check) {}

  Result<void> read() {
    TRY(open_files());
    for (const auto& skipped : metadata_.skipped) source_.left_out.push_back({skipped.key, skipped.reason});
    std::uint64_t bytes = 0;
    for (const auto& tensor : metadata_.tensors) {
      for (const auto& chunk : tensor.chunks) bytes += chunk.place.bytes;
    }
    Meter meter("checking", bytes);
    for (const auto& tensor : metadata_.tensors) TRY(add_tensor(tensor, meter));
    auto& tensors = source_.manifest.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const auto& a, const auto& b) { return a.key == b.key; });
    if (twice != tensors.end()) return core::fail(Errc::corrupt, "tensor '{}' is there twice", twice->key);
    return add_items();
  }

 private:
  Result<void> open_files() {
    TRY(core::check_dcp_files(metadata_, [&](const std::string& name) -> std::optional<std::uint64_t> {
      auto size = source_.storage->size(name);
      if (!size) return std::nullopt;
      return *size;
    }));
    for (const auto& name : metadata_.files) {
      files_.push_back(TRY(MappedFile::open((std::filesystem::path(source_.path) / name).string())));
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
    Value::Map trainer;
    for (const auto& item : metadata_.items) {
      auto value = core::parse_torch_value(TRY(bytes_at(item.place)));
      if (!value) {
        source_.left_out.push_back({item.key, value.error().message});
      } else if (item.key == kDcpValuesKey && take_own_values(*value, source_.manifest)) {
        source_.has_values = true;
      } else if (auto good = check_storable(*value, item.path.size() + 2); !good) {
        source_.left_out.push_back({item.key, good.error().message});
      } else if (item.path.empty() || !place(trainer, item.path, *value)) {
        trainer.set(item.key, std::move(*value));
      }
    }
    if (!source_.has_values) source_.manifest.common = std::move(trainer);
    return {};
  }

  Source& source_;
  const core::DcpMetadata& metadata_;
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

Result<Source> open_dcp(const std::string& directory, bool check) {
  Source source{SourceForm::dcp, directory, TRY(actors::PosixStorage::open(directory)), {}, false, {}};
  const auto path = std::filesystem::path(directory) / core::kDcpMetadataName;
  const auto file = TRY(MappedFile::open(path.string()));
  auto metadata = core::parse_dcp_metadata(file.bytes());
  if (!metadata) return core::fail(metadata.error().code, "{}: {}", path.string(), metadata.error().message);
  TRY(DcpReader(source, *metadata, check).read());
  return source;
}

}  // namespace troupe::apps
