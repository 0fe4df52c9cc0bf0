#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "core/checkpoint/json_cursor.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/sealed_text.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

template <class... Args>
tl::unexpected<Error> invalid(fmt::format_string<Args...> format, Args&&... args) {
  return fail(Errc::corrupt, "the manifest is not valid: {}",
              fmt::format(format, std::forward<Args>(args)...));
}

/// Checked before the hash, because another version may keep the hash elsewhere.
Result<void> check_version(std::string_view text) {
  JsonCursor cursor(text);
  cursor.expect(fmt::format("{{\"format\":\"{}\",\"version\":", kManifestFormat));
  const auto version = cursor.number();
  if (!cursor.is_good())
    return fail(Errc::corrupt,
                "this is not a checkpoint's manifest: it does not begin with the format \"{}\"",
                kManifestFormat);
  if (version == static_cast<std::uint64_t>(kManifestVersion)) return {};
  return fail(Errc::mismatch,
              "the checkpoint has format version {}, this program reads version {}; use a build of Troupe "
              "that reads the first",
              version, kManifestVersion);
}

Value read_value(JsonCursor& cursor) {
  auto value = parse_value(cursor.value());
  if (!value) cursor.complain(value.error().message);
  return value ? *std::move(value) : Value{};
}

ManifestFile read_file(JsonCursor& cursor) {
  ManifestFile file;
  cursor.expect("{\"name\":");
  file.name = cursor.string();
  cursor.expect(",\"bytes\":");
  file.bytes = cursor.number();
  cursor.expect(",\"header_bytes\":");
  file.header_bytes = cursor.number();
  cursor.expect(",\"header_hash\":");
  file.header_hash = cursor.hash();
  cursor.expect("}");
  return file;
}

ManifestShard read_shard(JsonCursor& cursor) {
  ManifestShard shard;
  cursor.expect("[");
  shard.file = static_cast<std::uint32_t>(cursor.number(UINT32_MAX));
  cursor.expect(",");
  shard.begin = cursor.number();
  cursor.expect(",");
  shard.end = cursor.number();
  cursor.expect(",");
  shard.hash = cursor.hash();
  cursor.expect(",");
  shard.box.offset = cursor.sizes();
  cursor.expect(",");
  shard.box.extent = cursor.sizes();
  cursor.expect("]");
  return shard;
}

ManifestTensor read_tensor(JsonCursor& cursor) {
  ManifestTensor tensor;
  cursor.expect("{\"key\":");
  tensor.key = cursor.string();
  cursor.expect(",\"dtype\":");
  const auto name = cursor.string();
  if (auto dtype = dtype_from_safetensors(name)) {
    tensor.dtype = *dtype;
  } else {
    cursor.complain(dtype.error().message);
  }
  cursor.expect(",\"shape\":");
  tensor.shape = cursor.sizes();
  cursor.expect(",\"shards\":[");
  if (!cursor.skip("]")) {
    do tensor.shards.push_back(read_shard(cursor));
    while (cursor.skip(","));
    cursor.expect("]");
  }
  cursor.expect("}");
  return tensor;
}

ManifestObject read_object(JsonCursor& cursor) {
  ManifestObject object;
  cursor.expect("{\"key\":");
  object.key = cursor.string();
  cursor.expect(",\"grid\":");
  object.grid = cursor.sizes();
  cursor.expect(",\"cell\":");
  object.cell = cursor.sizes();
  cursor.expect(",\"value\":");
  object.value = read_value(cursor);
  cursor.expect("}");
  return object;
}

template <class Item>
std::vector<Item> read_list(JsonCursor& cursor, const char* name, Item (*read)(JsonCursor&)) {
  std::vector<Item> items;
  cursor.expect(fmt::format("\"{}\":[", name));
  cursor.expect("\n");
  if (cursor.skip("],\n")) return items;
  do items.push_back(read(cursor));
  while (cursor.skip(",\n"));
  cursor.expect("\n");
  cursor.expect("],\n");
  return items;
}

Manifest read_manifest(JsonCursor& cursor) {
  Manifest manifest;
  cursor.expect(fmt::format("{{\"format\":\"{}\",\"version\":{},", kManifestFormat, kManifestVersion));
  cursor.expect("\n");
  cursor.expect("\"step\":");
  manifest.step = StepCount{static_cast<std::int64_t>(cursor.number(INT64_MAX))};
  cursor.expect(",\"save\":");
  manifest.save = hex64(cursor.hash());
  cursor.expect(",\n");
  cursor.expect("\"topology\":");
  manifest.topology = read_value(cursor);
  cursor.expect(",\n");
  cursor.expect("\"common\":");
  manifest.common = read_value(cursor);
  cursor.expect(",\n");
  manifest.files = read_list(cursor, "files", read_file);
  manifest.tensors = read_list(cursor, "tensors", read_tensor);
  manifest.objects = read_list(cursor, "objects", read_object);
  cursor.expect_end();
  return manifest;
}

Result<void> check_tensor(const ManifestTensor& tensor, const std::vector<ManifestFile>& files) {
  if (auto good = check_shape(tensor.shape); !good)
    return invalid("tensor '{}': {}", tensor.key, good.error().message);
  std::vector<const Box*> boxes;
  boxes.reserve(tensor.shards.size());
  for (const auto& shard : tensor.shards) {
    boxes.push_back(&shard.box);
    if (shard.file >= files.size())
      return invalid("tensor '{}' lies in a file that is not listed", tensor.key);
  }
  if (auto good = check_exact_cover(tensor.shape, boxes); !good)
    return invalid("tensor '{}': {}", tensor.key, good.error().message);
  const auto width = size_of(tensor.dtype);
  for (const auto& shard : tensor.shards) {
    // Compared in elements, because the bytes of a huge box may not fit into 64 bits.
    const auto elements = static_cast<std::uint64_t>(shard.box.elements());
    if (shard.end < shard.begin || shard.bytes() % width != 0 || shard.bytes() / width != elements)
      return invalid("tensor '{}': {} holds {} elements of {} bytes, bytes {} to {} are given", tensor.key,
                     to_string(shard.box), elements, width, shard.begin, shard.end);
  }
  return {};
}

/// Every byte of every file belongs to its header or to one shard.
Result<void> check_bytes(const Manifest& manifest) {
  using Range = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  std::vector<Range> ranges;
  for (const auto& tensor : manifest.tensors) {
    for (const auto& shard : tensor.shards) ranges.emplace_back(shard.file, shard.begin, shard.end);
  }
  std::sort(ranges.begin(), ranges.end());
  auto range = ranges.begin();
  for (std::uint32_t i = 0; i < manifest.files.size(); ++i) {
    const auto& file = manifest.files[i];
    std::uint64_t expected = file.header_bytes;
    for (; range != ranges.end() && std::get<0>(*range) == i; ++range) {
      const auto [number, begin, end] = *range;
      if (begin != expected)
        return invalid("byte {} of file '{}' belongs to no shard, or to two", std::min(begin, expected),
                       file.name);
      expected = end;
    }
    if (expected != file.bytes)
      return invalid("file '{}' has {} bytes, its header and shards end at {}", file.name, file.bytes,
                     expected);
  }
  return {};
}

Result<void> check_files(const std::vector<ManifestFile>& files) {
  std::vector<std::string_view> names{kManifestName};
  for (const auto& file : files) {
    const bool leaves = file.name.empty() || file.name == "." || file.name == ".." ||
                        file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
    if (leaves) return invalid("'{}' is not the name of a file in this directory", file.name);
    if (file.header_bytes > sizeof(std::uint64_t) + kMaxHeaderBytes)
      return invalid("the header of file '{}' has {} bytes, at most {} are allowed", file.name,
                     file.header_bytes, sizeof(std::uint64_t) + kMaxHeaderBytes);
    names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  const auto same = std::adjacent_find(names.begin(), names.end());
  if (same == names.end()) return {};
  return invalid("file '{}' is listed twice", *same);
}

Result<void> check_tensors(const Manifest& manifest) {
  const auto& tensors = manifest.tensors;
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const auto& a, const auto& b) { return a.key >= b.key; });
  if (twice != tensors.end())
    return invalid("tensor '{}' comes twice or out of order", std::next(twice)->key);
  for (const auto& tensor : tensors) TRY(check_tensor(tensor, manifest.files));
  return {};
}

}  // namespace

Result<void> check_objects(const std::vector<ManifestObject>& objects) {
  std::vector<const ManifestObject*> order;
  for (const auto& object : objects) {
    const Box cell{object.cell, Shape(object.cell.size(), 1)};
    if (!cell.lies_in(object.grid))
      return invalid("object '{}': {} does not lie in its grid {}", object.key, to_string(object.cell),
                     to_string(object.grid));
    order.push_back(&object);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->key, a->grid, a->cell) < std::tie(b->key, b->grid, b->cell);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const auto& a = *order[i - 1];
    const auto& b = *order[i];
    if (a.key != b.key) continue;
    if (a.grid != b.grid)
      return invalid("object '{}' has the grids {} and {}", a.key, to_string(a.grid), to_string(b.grid));
    if (a.cell == b.cell) return invalid("object '{}' comes twice at {}", a.key, to_string(a.cell));
  }
  return {};
}

Result<Manifest> parse_manifest(std::string_view text) {
  TRY(check_version(text));
  JsonCursor cursor(TRY(unseal(text, "the manifest")));
  Manifest manifest = read_manifest(cursor);
  if (!cursor.is_good()) return invalid("{}", cursor.complaint());
  TRY(check_files(manifest.files));
  TRY(check_tensors(manifest));
  TRY(check_bytes(manifest));
  TRY(check_objects(manifest.objects));
  return manifest;
}

}  // namespace troupe::core
