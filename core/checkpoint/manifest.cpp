#include "core/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/sealed_text.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/values/json_text.hpp"

namespace troupe::core {

namespace {

std::string quoted(const std::string& text) {
  std::string json;
  append_string(json, text);
  return json;
}

std::string text_of(const Value& value) {
  auto text = value_text(value);
  CHECK(text.has_value(), "a value that is saved was checked when it was handed over");
  return *std::move(text);
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

void append_hash(std::string& text, std::uint64_t hash) {
  fmt::format_to(std::back_inserter(text), "\"{:016x}\"", hash);
}

void write_tensor(std::string& text, const ManifestTensor& tensor) {
  fmt::format_to(std::back_inserter(text), R"({{"key":{},"dtype":"{}","shape":[{}],"shards":[)",
                 quoted(tensor.key), safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","));
  const char* before = "[";
  for (const auto& shard : tensor.shards) {
    for (std::uint64_t number : {std::uint64_t{shard.file}, shard.begin, shard.end}) {
      text += before;
      append_number(text, number);
      before = ",";
    }
    text += ',';
    append_hash(text, shard.hash);
    text += ',';
    append_sizes(text, shard.box.offset);
    text += ',';
    append_sizes(text, shard.box.extent);
    text += ']';
    before = ",[";
  }
  text += "]}";
}

}  // namespace

std::string checkpoint_name(StepCount step) {
  return fmt::format("step_{:08}", step.value);
}

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
  std::string text =
      fmt::format("{{\"format\":\"{}\",\"version\":{},\n\"step\":{},\"save\":{},\n", kManifestFormat,
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
  return seal(std::move(text));
}

}  // namespace troupe::core
