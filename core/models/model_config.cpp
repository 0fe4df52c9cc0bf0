#include "core/models/model_config.hpp"

#include "core/errors.hpp"
#include "core/models/config_reader.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

template <class Config, class Visitor>
Ordered fields_json(const Config& config, const Visitor& visit_all) {
  Ordered json = Ordered::object();
  visit_all(config, [&](const char* name, const auto& field) { json[name] = put(field); });
  return json;
}

/// Fields that files of earlier versions lack.
bool is_newer(std::string_view part, std::string_view field) {
  if (part == "model") return field == "position_embedding_type" || field.starts_with("yarn_");
  return part == "transformer_config" && (field == "window_size" || field == "window_attn_skip_freq");
}

template <class Config, class Visitor>
Result<void> read_fields(const Json& root, const char* part, Config& config, const Visitor& visit_all) {
  const auto found = root.find(part);
  if (found == root.end() || !found->is_object())
    return fail(Errc::corrupt, "a model's configuration needs an object '{}'", part);
  std::string wrong;
  std::size_t taken = 0;
  visit_all(config, [&](const char* name, auto& field) {
    const auto value = found->find(name);
    if (value == found->end() && is_newer(part, name)) return;
    const bool good = value != found->end() && take(*value, field);
    if (good) ++taken;
    if (!good && wrong.empty()) wrong = name;
  });
  if (!wrong.empty())
    return fail(Errc::corrupt, "field '{}' of {} is missing or of a wrong kind", wrong, part);
  if (taken != found->size())
    return fail(Errc::corrupt, "{} has {} fields, {} are known", part, found->size(), taken);
  return {};
}

constexpr auto kTransformer = [](auto& config, const auto& visit) { visit_transformer(config, visit); };
constexpr auto kBuilder = [](auto& config, const auto& visit) { visit_builder(config, visit); };
constexpr auto kVision = [](auto& config, const auto& visit) { visit_vision(config, visit); };

}  // namespace

std::string to_text(const ModelConfig& model) {
  Ordered json = Ordered::object();
  json["architecture"] = std::string(facts_of(model.architecture).name);
  json["transformer_config"] = fields_json(model.transformer, kTransformer);
  json["model"] = fields_json(model.builder, kBuilder);
  json["vision"] = model.vision ? fields_json(*model.vision, kVision) : Ordered();
  Ordered kept = Ordered::object();
  for (const auto& [name, text] : model.kept) {
    auto value = Ordered::parse(text, nullptr, false);
    if (!value.is_discarded()) kept[name] = std::move(value);
  }
  json["huggingface"] = std::move(kept);
  return json.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

Result<ModelConfig> parse_model_config(std::string_view text) {
  const auto json = TRY(parse_json_object(text, "a model's configuration"));
  ModelConfig model;
  const auto architecture = json.find("architecture");
  if (architecture == json.end() || !architecture->is_string())
    return fail(Errc::corrupt, "a model's configuration needs the text 'architecture'");
  model.architecture = TRY(architecture_from_name(architecture->get_ref<const std::string&>()));
  TRY(read_fields(json, "transformer_config", model.transformer, kTransformer));
  TRY(read_fields(json, "model", model.builder, kBuilder));
  const auto vision = json.find("vision");
  if (vision != json.end() && !vision->is_null())
    TRY(read_fields(json, "vision", model.vision.emplace(), kVision));
  const auto kept = json.find("huggingface");
  if (kept != json.end() && kept->is_object()) {
    for (const auto& [name, value] : kept->items())
      model.kept[name] = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  if (model.transformer.num_layers > 1 << 16)
    return fail(Errc::corrupt, "num_layers is {}", model.transformer.num_layers);
  TRY(complete(model.transformer));
  return model;
}

}  // namespace troupe::core
