#include "apps/files/model_companions.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"
#include "core/models/config_fields.hpp"
#include "core/values/json_object.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
constexpr const char* kConfig = "config.json";

/// What transformers writes besides the tensors, and training does not change.
constexpr std::array kCompanions{
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja",     "tokenizer.model"};

Result<std::vector<std::byte>> read_whole(actors::Storage& storage, const char* name) {
  const auto size = TRY(storage.size(name));
  if (size > kMostBytes) return core::fail(Errc::corrupt, "{} has {} bytes, which is too many", name, size);
  return storage.read(name, 0, size);
}

}  // namespace

Result<std::string> with_dtype(std::string_view config, core::DType dtype) {
  auto json = TRY(core::parse_json_object(config, kConfig));
  const auto name = core::put(dtype);
  const bool is_new = json.contains("dtype");
  if (is_new) json["dtype"] = name;
  if (!is_new || json.contains("torch_dtype")) json["torch_dtype"] = name;
  json.erase("quantization_config");  // values are written, not blocks with factors
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

ModelFiles ModelFiles::of(const core::Value& saved) {
  const auto text = [&](const char* path) {
    const auto* value = saved.find(path);
    const auto* found = value != nullptr ? value->as_string() : nullptr;
    return found != nullptr ? *found : std::string();
  };
  return {text("model.config"), text("model.directory")};
}

core::Value ModelFiles::value() const {
  return core::Value::Map{{"config", config}, {"directory", directory}};
}

Result<ModelFiles> model_files_in(const std::string& directory) {
  const auto storage = TRY(actors::PosixStorage::open(directory, actors::Links::to_blobs));
  const auto bytes = read_whole(*storage, kConfig);
  if (!bytes && bytes.error().code == Errc::not_found)
    return core::fail(Errc::not_found, "{} has no config.json; give a model directory of Hugging Face",
                      directory);
  if (!bytes) return tl::unexpected(bytes.error());
  return ModelFiles{{reinterpret_cast<const char*>(bytes->data()), bytes->size()}, directory};
}

Result<std::vector<std::string>> copy_companions(const std::string& directory, StagedDirectory& out) {
  const auto storage = TRY(actors::PosixStorage::open(directory, actors::Links::to_blobs));
  std::vector<std::string> copied;
  for (const char* name : kCompanions) {
    const auto bytes = read_whole(*storage, name);
    if (!bytes && bytes.error().code == Errc::not_found) continue;
    if (!bytes) return tl::unexpected(bytes.error());
    TRY(out.write(name, *bytes));
    copied.emplace_back(name);
  }
  return copied;
}

}  // namespace troupe::apps
