#include "apps/troupe/checkpoint/show.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/command_line/json_text.hpp"
#include "apps/files/text.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/interop/dcp_metadata.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;
using core::Errc;
using core::Result;

constexpr std::size_t kMostNameColumns = 100;
constexpr std::size_t kMostValues = 40;
constexpr std::size_t kMostShards = 62;

std::uint64_t bytes_of(const core::ManifestTensor& tensor) {
  return static_cast<std::uint64_t>(core::elements_of(tensor.shape)) * core::size_of(tensor.dtype);
}

/// When the file was written that makes the directory a checkpoint; empty when nobody knows.
std::string time_of(const Source& source) {
  auto path = source.path;
  if (source.form == SourceForm::troupe) path += std::string("/") + core::kManifestName;
  if (source.form == SourceForm::dcp) path += "/" + std::string(core::kDcpMetadataName);
  struct stat status {};
  std::tm parts{};
  if (::stat(path.c_str(), &status) != 0 || ::gmtime_r(&status.st_mtime, &parts) == nullptr) return "";
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// The rank that wrote a file of ours: "shard_00003_1.safetensors".
std::optional<int> rank_of(const std::string& file) {
  int rank = 0;
  int end = 0;
  if (std::sscanf(file.c_str(), "shard_%5d_%*d.safetensors%n", &rank, &end) != 1 || end == 0)
    return std::nullopt;
  return rank;
}

std::int64_t elements_of(const core::Manifest& manifest) {
  std::int64_t elements = 0;
  for (const auto& tensor : manifest.tensors) elements += core::elements_of(tensor.shape);
  return elements;
}

void append_table(const core::Manifest& manifest, std::string& text) {
  std::size_t width = 6;
  for (const auto& tensor : manifest.tensors)
    width = std::max(width, std::min(printable(tensor.key).size(), kMostNameColumns));
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<{}} {:<8} {:>16} {:>6} {:>10}\n", "tensor", width, "dtype", "shape", "shards",
                 "bytes");
  for (const auto& tensor : manifest.tensors) {
    fmt::format_to(out, "{:<{}} {:<8} {:>16} {:>6} {:>10}\n", printable(tensor.key), width,
                   name_of(tensor.dtype), core::to_string(tensor.shape), tensor.shards.size(),
                   bytes_text(bytes_of(tensor)));
  }
  fmt::format_to(out, "{} tensors, {} elements, {} in {} files\n", manifest.tensors.size(),
                 elements_of(manifest), bytes_text(manifest.tensor_bytes()), manifest.files.size());
}

void append_values(const char* title, const core::Value& value, std::string& text) {
  const auto [leaves, count] = value_leaves(value, kMostValues);
  if (leaves.empty()) return;
  std::size_t width = 0;
  for (const auto& [path, shown] : leaves) width = std::max(width, std::min<std::size_t>(path.size(), 48));
  auto out = std::back_inserter(text);
  fmt::format_to(out, "\n{}\n", title);
  for (const auto& [path, shown] : leaves) fmt::format_to(out, "  {:<{}}  {}\n", path, width, shown);
  if (count > leaves.size())
    fmt::format_to(out, "  ... and {} more; --json has all\n", count - leaves.size());
}

void append_objects(const core::Manifest& manifest, std::string& text) {
  if (manifest.objects.empty()) return;
  std::map<std::string, std::pair<std::size_t, core::Shape>> cells;
  for (const auto& object : manifest.objects) {
    auto& [count, grid] = cells[object.key];
    ++count;
    grid = object.grid;
  }
  text += "\nobjects\n";
  for (const auto& [key, cell] : cells)
    text +=
        fmt::format("  {:<32} {} of a grid {}\n", printable(key), cell.first, core::to_string(cell.second));
}

void append_notes(const Source& source, std::string& text) {
  if (source.notes.empty()) return;
  text += "\n";
  for (const auto& note : source.notes) text += printable(note) + "\n";
}

void append_left_out(const Source& source, std::string& text) {
  if (source.left_out.empty()) return;
  text += "\nnot readable here\n";
  for (const auto& one : source.left_out)
    text += fmt::format("  {:<32} {}\n", printable(one.key), printable(one.reason));
}

Json tensor_json(const core::ManifestTensor& tensor) {
  return {{"key", tensor.key},
          {"dtype", name_of(tensor.dtype)},
          {"shape", tensor.shape},
          {"bytes", bytes_of(tensor)},
          {"shards", tensor.shards.size()}};
}

/// A JSON object that is written member by member, so that there is never a tree of all of it.
class JsonText {
 public:
  void member(const char* name, const Json& json) { raw_member(name, json.dump(-1, ' ', false, kReplace)); }
  void raw_member(const char* name, std::string_view json) {
    fmt::format_to(std::back_inserter(text_), "{}\n  \"{}\": {}", before_, name, json);
    before_ = ",";
  }
  /// One item on each line; `write` appends it.
  template <class Items, class Write>
  Result<void> list(const char* name, const Items& items, Write&& write) {
    raw_member(name, "[");
    const char* before = "\n    ";
    for (const auto& item : items) {
      text_ += before;
      text_ += TRY(write(item));
      before = ",\n    ";
    }
    text_ += items.empty() ? "]" : "\n  ]";
    return {};
  }
  std::string take() { return std::move(text_) + "\n}\n"; }

  static constexpr auto kReplace = Json::error_handler_t::replace;

 private:
  std::string text_ = "{";
  const char* before_ = "";
};

std::string on_one_line(const Json& json) {
  return json.dump(-1, ' ', false, JsonText::kReplace);
}

Result<const core::ManifestTensor*> tensor_named(const Source& source, const std::string& key) {
  if (const auto* tensor = source.manifest.find(key)) return tensor;
  std::string near;
  for (const auto& tensor : source.manifest.tensors) {
    if (tensor.key.find(key) == std::string::npos || near.size() > 200) continue;
    near += fmt::format("{}'{}'", near.empty() ? "; there are " : ", ", printable(tensor.key));
  }
  return core::fail(Errc::not_found, "{} has no tensor '{}'{}", source.path, key,
                    near.empty() ? "; show it without --tensor to see their names" : near);
}

}  // namespace

std::string show_text(const Source& source) {
  const auto& manifest = source.manifest;
  auto text = fmt::format("{}: {}\n", source.path, describe(source.form));
  if (source.has_values) text += fmt::format("step {}", manifest.step.value);
  if (source.form == SourceForm::troupe) text += fmt::format("  save {}", manifest.save);
  const auto written = time_of(source);
  if (!written.empty()) text += fmt::format("{}written {}", source.has_values ? "  " : "", written);
  text += "\n";
  const auto topology = value_leaves(manifest.topology, kMostValues).first;
  if (!topology.empty()) text += "saved by:";
  for (std::size_t i = 0; i < topology.size(); ++i)
    text += fmt::format("{} {} {}", i == 0 ? "" : ",", topology[i].first, topology[i].second);
  text += topology.empty() ? "\n" : "\n\n";
  append_table(manifest, text);
  append_values("common values", manifest.common, text);
  append_objects(manifest, text);
  append_left_out(source, text);
  append_notes(source, text);
  return text;
}

Result<std::string> show_json(const Source& source) {
  const auto& manifest = source.manifest;
  JsonText json;
  json.member("path", source.path);
  json.member("form", describe(source.form));
  json.member("step", source.has_values ? Json(manifest.step.value) : Json());
  json.member("save", manifest.save);
  json.member("written", time_of(source));
  json.raw_member("topology", TRY(core::value_text(manifest.topology)));
  json.raw_member("common", TRY(core::value_text(manifest.common)));
  json.member("bytes", manifest.tensor_bytes());
  json.member("elements", elements_of(manifest));
  using Text = Result<std::string>;
  TRY(json.list("tensors", manifest.tensors,
                [](const auto& tensor) -> Text { return on_one_line(tensor_json(tensor)); }));
  TRY(json.list("files", manifest.files, [](const auto& file) -> Text {
    return on_one_line({{"name", file.name}, {"bytes", file.bytes}});
  }));
  TRY(json.list("objects", manifest.objects, [](const auto& object) -> Text {
    auto text = on_one_line({{"key", object.key}, {"grid", object.grid}, {"cell", object.cell}});
    text.pop_back();
    return text + ",\"value\":" + TRY(core::value_text(object.value)) + "}";
  }));
  json.member("notes", source.notes);
  TRY(json.list("left_out", source.left_out, [](const auto& one) -> Text {
    return on_one_line({{"key", one.key}, {"reason", one.reason}});
  }));
  return json.take();
}

Result<std::string> show_tensor_text(const Source& source, const std::string& key) {
  const auto& tensor = *TRY(tensor_named(source, key));
  const auto& files = source.manifest.files;
  auto text = fmt::format("{}  {} {}, {} in {} parts\n\n", printable(tensor.key), name_of(tensor.dtype),
                          core::to_string(tensor.shape), bytes_text(bytes_of(tensor)), tensor.shards.size());
  text += tensor_map(tensor) + "\n";
  auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < std::min(tensor.shards.size(), kMostShards); ++i) {
    const auto& shard = tensor.shards[i];
    const auto& file = files[shard.file].name;
    const auto rank = rank_of(file);
    fmt::format_to(out, "{}  {}{}  bytes {} to {} of {}\n", shard_letter(i), core::to_string(shard.box),
                   rank ? fmt::format("  rank {}", *rank) : "", shard.begin, shard.end, printable(file));
  }
  if (tensor.shards.size() > kMostShards)
    fmt::format_to(out, "... and {} more; --json has all\n", tensor.shards.size() - kMostShards);
  return text;
}

Result<std::string> show_tensor_json(const Source& source, const std::string& key) {
  const auto& tensor = *TRY(tensor_named(source, key));
  auto json = tensor_json(tensor);
  json["shards"] = Json::array();
  for (const auto& shard : tensor.shards) {
    const auto& file = source.manifest.files[shard.file].name;
    const auto rank = rank_of(file);
    Json one{{"file", file}, {"begin", shard.begin}, {"end", shard.end}};
    one["rank"] = rank ? Json(*rank) : Json();
    one["hash"] = source.form == SourceForm::troupe ? Json(core::hex64(shard.hash)) : Json();
    one["offset"] = shard.box.offset;
    one["extent"] = shard.box.extent;
    json["shards"].push_back(std::move(one));
  }
  return json_text(json);
}

}  // namespace troupe::apps
