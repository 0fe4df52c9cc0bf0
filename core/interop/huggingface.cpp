#include "core/interop/huggingface.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/utf8.hpp"
#include "core/values/json_check.hpp"

namespace troupe::core {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kMaxDepth = 16;

bool is_file_name(std::string_view name) {
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<void> check_name(Errc code, std::string_view tensor, std::string_view file) {
  if (is_file_name(file)) return {};
  return fail(code, "index: tensor '{}' lies in '{}', which is not a *.safetensors in the directory", tensor,
              file);
}

/// A member of an object; null if it is missing or the parent is not an object.
const Json* member(const Json& parent, const char* name) {
  const auto found = parent.is_object() ? parent.find(name) : parent.end();
  return found == parent.end() ? nullptr : &*found;
}

}  // namespace

Result<HuggingFaceIndex> parse_huggingface_index(std::string_view text) {
  const JsonCheck check = check_json(text, kMaxDepth);
  const bool fits = check.fits && check.twice.empty();
  const Json json = fits ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
  if (json.is_discarded() || !json.is_object()) {
    return fail(Errc::corrupt, "index: {} bytes are not a JSON object of unique names and at most {} levels",
                text.size(), kMaxDepth);
  }
  HuggingFaceIndex index;
  const Json* metadata = member(json, "metadata");
  const Json* total = metadata != nullptr ? member(*metadata, "total_size") : nullptr;
  // Some writers write a number with a zero fraction.
  if (total != nullptr && total->is_number_unsigned()) index.total_bytes = total->get<std::uint64_t>();
  const Json* weights = member(json, "weight_map");
  if (weights == nullptr || !weights->is_object()) {
    return fail(Errc::corrupt, "index: no object 'weight_map'");
  }
  for (const auto& [tensor, file] : weights->items()) {
    if (!file.is_string()) return fail(Errc::corrupt, "index: the file of tensor '{}' is not text", tensor);
    TRY(check_name(Errc::corrupt, tensor, file.get_ref<const std::string&>()));
    index.weight_map.emplace(tensor, file.get<std::string>());
  }
  return index;
}

Result<std::string> encode_huggingface_index(const HuggingFaceIndex& index) {
  Json weights = Json::object();
  for (const auto& [tensor, file] : index.weight_map) {
    if (!is_utf8(tensor) || !is_utf8(file)) {
      return fail(Errc::invalid_argument, "index: a name is not UTF-8, near '{}'", tensor.substr(0, 40));
    }
    TRY(check_name(Errc::invalid_argument, tensor, file));
    weights[tensor] = file;
  }
  const Json json = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", std::move(weights)}};
  return json.dump(2) + "\n";
}

std::string huggingface_file_name(std::size_t part, std::size_t parts) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", part, parts);
}

std::string huggingface_shard_file_name(int rank, std::size_t part, std::size_t parts) {
  return fmt::format("shard-{:05}-{}", rank + 1, huggingface_file_name(part, parts));
}

std::vector<std::vector<std::size_t>> split_into_files(std::span<const std::uint64_t> tensor_bytes,
                                                       std::uint64_t max_bytes) {
  std::vector<std::vector<std::size_t>> files;
  std::uint64_t left = 0;
  for (std::size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (files.empty() || tensor_bytes[i] > left) {
      files.emplace_back();
      left = max_bytes;
    }
    files.back().push_back(i);
    left -= std::min(left, tensor_bytes[i]);
  }
  return files;
}

}  // namespace troupe::core
