#include "core/checkpoint/manifest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/check.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/hash.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "troupe-checkpoint";
constexpr std::string_view kHashLine = "\"hash\":\"";
constexpr std::size_t kHexDigits = 16;

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_of(const Value& value) {
  auto json = to_json(value);
  CHECK(json.has_value(), "a value that is saved was checked when it was handed over");
  return json->dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Items, class Write>
void write_list(std::string& text, const char* name, const Items& items, Write&& write) {
  text += fmt::format("\"{}\":[", name);
  const char* before = "\n";
  for (const auto& item : items) {
    text += before;
    write(item);
    before = ",\n";
  }
  text += "\n],\n";
}

void write_tensor(std::string& text, const ManifestTensor& tensor) {
  auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"key":{},"dtype":"{}","shape":[{}],"shards":[)", quoted(tensor.key),
                 safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","));
  const char* before = "";
  for (const auto& shard : tensor.shards) {
    fmt::format_to(out, R"({}[{},{},{},"{:016x}",[{}],[{}]])", before, shard.file, shard.begin, shard.end,
                   shard.hash, fmt::join(shard.box.offset, ","), fmt::join(shard.box.extent, ","));
    before = ",";
  }
  text += "]}";
}

/// Reads members and remembers the first thing that is wrong.
class Reader {
 public:
  bool is_good() const { return complaint_.empty(); }
  core::Error error() const { return {Errc::corrupt, "the manifest is not valid: " + complaint_}; }
  void complain(std::string what) {
    if (complaint_.empty()) complaint_ = std::move(what);
  }

  const Json& member(const Json& object, const char* name, Json::value_t type) {
    static const Json kNothing;
    if (object.is_object()) {
      auto found = object.find(name);
      const bool fits =
          found != object.end() &&
          (found->type() == type || (type == Json::value_t::number_integer && found->is_number_integer()));
      if (fits) return *found;
    }
    complain(fmt::format("'{}' is missing or has another type", name));
    return kNothing;
  }
  std::string text(const Json& object, const char* name) {
    const Json& found = member(object, name, Json::value_t::string);
    return found.is_string() ? found.get<std::string>() : "";
  }
  std::uint64_t number(const Json& found, const char* name) {
    if (found.is_number_unsigned()) return found.get<std::uint64_t>();
    complain(fmt::format("'{}' is no number, or below 0", name));
    return 0;
  }
  std::uint64_t number_in(const Json& object, const char* name) {
    return number(member(object, name, Json::value_t::number_integer), name);
  }
  std::uint64_t hash(const Json& found) {
    const std::string digits = found.is_string() ? found.get<std::string>() : "";
    const bool good =
        digits.size() == kHexDigits && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (good) return std::stoull(digits, nullptr, 16);
    complain("a hash has not 16 hexadecimal digits");
    return 0;
  }
  Shape shape(const Json& found, const char* name) {
    Shape sizes;
    if (!found.is_array() || found.size() > 64) {
      complain(fmt::format("'{}' is no list of sizes", name));
      return sizes;
    }
    for (const auto& size : found) {
      auto value = number(size, name);
      if (value > (std::uint64_t{1} << 62)) complain(fmt::format("'{}' has a size beyond 2^62", name));
      sizes.push_back(static_cast<std::int64_t>(value));
    }
    return sizes;
  }
  Value value(const Json& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (!object.is_object() || found == object.end()) {
      complain(fmt::format("'{}' is missing", name));
      return {};
    }
    auto value = value_from_json(*found);
    if (!value) complain(fmt::format("'{}': {}", name, value.error().message));
    return value ? std::move(*value) : Value{};
  }

 private:
  std::string complaint_;
};

ManifestFile read_file(const Json& json, Reader& reader) {
  ManifestFile file;
  file.name = reader.text(json, "name");
  file.bytes = reader.number_in(json, "bytes");
  file.header_bytes = reader.number_in(json, "header_bytes");
  file.header_hash = reader.hash(reader.member(json, "header_hash", Json::value_t::string));
  const bool leaves = file.name.empty() || file.name.find('/') != std::string::npos || file.name == "." ||
                      file.name == ".." || file.name.find('\0') != std::string::npos;
  if (leaves) reader.complain(fmt::format("'{}' is no name of a file in this directory", file.name));
  if (file.header_bytes > file.bytes)
    reader.complain(fmt::format("the header of '{}' is longer than the file", file.name));
  return file;
}

ManifestShard read_shard(const Json& json, Reader& reader) {
  ManifestShard shard;
  if (!json.is_array() || json.size() != 6) {
    reader.complain("a shard is not [file, begin, end, hash, offset, extent]");
    return shard;
  }
  const auto file = reader.number(json[0], "file");
  if (file > UINT32_MAX) reader.complain("a shard's file has no such number");
  shard.file = static_cast<std::uint32_t>(file);
  shard.begin = reader.number(json[1], "begin");
  shard.end = reader.number(json[2], "end");
  shard.hash = reader.hash(json[3]);
  shard.box.offset = reader.shape(json[4], "offset");
  shard.box.extent = reader.shape(json[5], "extent");
  return shard;
}

ManifestTensor read_tensor(const Json& json, Reader& reader) {
  ManifestTensor tensor;
  tensor.key = reader.text(json, "key");
  if (auto dtype = dtype_from_safetensors(reader.text(json, "dtype"))) {
    tensor.dtype = *dtype;
  } else {
    reader.complain(fmt::format("tensor '{}': {}", tensor.key, dtype.error().message));
  }
  tensor.shape = reader.shape(reader.member(json, "shape", Json::value_t::array), "shape");
  if (auto good = check_shape(tensor.shape); !good) reader.complain(good.error().message);
  for (const auto& shard : reader.member(json, "shards", Json::value_t::array)) {
    tensor.shards.push_back(read_shard(shard, reader));
  }
  return tensor;
}

ManifestObject read_object(const Json& json, Reader& reader) {
  ManifestObject object;
  object.key = reader.text(json, "key");
  object.grid = reader.shape(reader.member(json, "grid", Json::value_t::array), "grid");
  object.cell = reader.shape(reader.member(json, "cell", Json::value_t::array), "cell");
  object.value = reader.value(json, "value");
  return object;
}

void check_tensor(const ManifestTensor& tensor, const std::vector<ManifestFile>& files, Reader& reader) {
  std::vector<Box> boxes;
  for (const auto& shard : tensor.shards) {
    boxes.push_back(shard.box);
    if (shard.file >= files.size()) {
      reader.complain(fmt::format("tensor '{}' lies in a file that is not listed", tensor.key));
      return;
    }
  }
  if (auto good = check_exact_cover(tensor.shape, boxes); !good) {
    reader.complain(fmt::format("tensor '{}': {}", tensor.key, good.error().message));
    return;
  }
  for (const auto& shard : tensor.shards) {
    const auto bytes = static_cast<std::uint64_t>(shard.box.elements()) * size_of(tensor.dtype);
    if (shard.end < shard.begin || shard.bytes() != bytes)
      reader.complain(fmt::format("tensor '{}': {} needs {} bytes, bytes {} to {} are given", tensor.key,
                                  to_string(shard.box), bytes, shard.begin, shard.end));
  }
}

/// Every byte of every file belongs to its header or to one shard.
void check_files(const Manifest& manifest, Reader& reader) {
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
      if (std::get<1>(*range) != expected) {
        reader.complain(
            fmt::format("bytes {} of file '{}' belong to no shard, or to two", expected, file.name));
        return;
      }
      expected = std::get<2>(*range);
    }
    if (expected != file.bytes)
      reader.complain(
          fmt::format("file '{}' has {} bytes, its shards end at {}", file.name, file.bytes, expected));
  }
}

void check_names(const Manifest& manifest, Reader& reader) {
  auto by_key = [](const ManifestTensor& a, const ManifestTensor& b) { return a.key >= b.key; };
  auto twice = std::adjacent_find(manifest.tensors.begin(), manifest.tensors.end(), by_key);
  if (twice != manifest.tensors.end())
    reader.complain(fmt::format("tensor '{}' comes twice or out of order", std::next(twice)->key));
  std::vector<std::string> names;
  for (const auto& file : manifest.files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  auto same = std::adjacent_find(names.begin(), names.end());
  if (same != names.end()) reader.complain(fmt::format("file '{}' is listed twice", *same));
  for (const auto& object : manifest.objects) {
    const Box cell{object.cell, Shape(object.cell.size(), 1)};
    if (!cell.lies_in(object.grid)) reader.complain(fmt::format("object '{}' leaves its grid", object.key));
  }
}

/// The text before the line of the hash, which must be right.
Result<void> check_hash(std::string_view text) {
  const auto line = text.rfind(kHashLine);
  const std::string_view rest = line == std::string_view::npos ? "" : text.substr(line + kHashLine.size());
  if (rest.size() != kHexDigits + 3 || rest.substr(kHexDigits) != "\"}\n")
    return fail(Errc::corrupt, "the manifest is cut short: it does not end with its hash");
  const auto found = hex64(hash64(text.substr(0, line)));
  if (rest.substr(0, kHexDigits) != found)
    return fail(Errc::corrupt, "the manifest was altered: its bytes have the hash {}, it says {}", found,
                rest.substr(0, kHexDigits));
  return {};
}

}  // namespace

std::string hex64(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::uint64_t Manifest::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<std::uint64_t>(elements_of(tensor.shape)) * size_of(tensor.dtype);
  }
  return bytes;
}

const ManifestTensor* Manifest::find(std::string_view key) const {
  auto found = std::lower_bound(
      tensors.begin(), tensors.end(), key,
      [](const ManifestTensor& tensor, std::string_view wanted) { return tensor.key < wanted; });
  return found != tensors.end() && found->key == key ? &*found : nullptr;
}

std::string to_text(const Manifest& manifest) {
  std::string text = fmt::format("{{\"format\":\"{}\",\"version\":{},\n\"step\":{},\"save\":{},\n", kFormat,
                                 kManifestVersion, manifest.step.value, quoted(manifest.save));
  text +=
      fmt::format("\"topology\":{},\n\"common\":{},\n", text_of(manifest.topology), text_of(manifest.common));
  write_list(text, "files", manifest.files, [&](const ManifestFile& file) {
    text += fmt::format(R"({{"name":{},"bytes":{},"header_bytes":{},"header_hash":"{:016x}"}})",
                        quoted(file.name), file.bytes, file.header_bytes, file.header_hash);
  });
  write_list(text, "tensors", manifest.tensors,
             [&](const ManifestTensor& tensor) { write_tensor(text, tensor); });
  write_list(text, "objects", manifest.objects, [&](const ManifestObject& object) {
    text += fmt::format(R"({{"key":{},"grid":[{}],"cell":[{}],"value":{}}})", quoted(object.key),
                        fmt::join(object.grid, ","), fmt::join(object.cell, ","), text_of(object.value));
  });
  const auto hash = hash64(text);
  return text + fmt::format("\"hash\":\"{:016x}\"}}\n", hash);
}

Result<Manifest> parse_manifest(std::string_view text) {
  TRY(check_hash(text));
  auto deep = [](int depth, Json::parse_event_t, Json&) { return depth < 200; };
  const Json json = Json::parse(text, deep, false);
  if (json.is_discarded()) return fail(Errc::corrupt, "the manifest is no JSON");
  Reader reader;
  if (reader.text(json, "format") != kFormat)
    return fail(Errc::corrupt, "this is no manifest of a checkpoint: 'format' is not \"{}\"", kFormat);
  const auto version = reader.number_in(json, "version");
  if (reader.is_good() && version != static_cast<std::uint64_t>(kManifestVersion))
    return fail(
        Errc::mismatch,
        "the checkpoint has format version {}, this program reads version {}; use a program of its time",
        version, kManifestVersion);
  Manifest manifest;
  const auto step = reader.number_in(json, "step");
  if (step > INT64_MAX) reader.complain("'step' is too large");
  manifest.step = Step{static_cast<std::int64_t>(step)};
  manifest.save = reader.text(json, "save");
  manifest.topology = reader.value(json, "topology");
  manifest.common = reader.value(json, "common");
  using Type = Json::value_t;
  for (const auto& file : reader.member(json, "files", Type::array))
    manifest.files.push_back(read_file(file, reader));
  for (const auto& tensor : reader.member(json, "tensors", Type::array))
    manifest.tensors.push_back(read_tensor(tensor, reader));
  for (const auto& object : reader.member(json, "objects", Type::array))
    manifest.objects.push_back(read_object(object, reader));
  check_names(manifest, reader);
  for (const auto& tensor : manifest.tensors) {
    if (reader.is_good()) check_tensor(tensor, manifest.files, reader);
  }
  if (reader.is_good()) check_files(manifest, reader);
  if (!reader.is_good()) return tl::unexpected(reader.error());
  return manifest;
}

}  // namespace troupe::core
