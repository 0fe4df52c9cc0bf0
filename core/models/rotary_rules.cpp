#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/models/huggingface_rules.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

/// Values built into Megatron's Llama 3 scaling.
constexpr double kLlama3LowFrequency = 1;
constexpr double kLlama3HighFrequency = 4;
constexpr std::int64_t kLlama3Positions = 8192;

/// How positions are scaled: rope_scaling, or rope_parameters in newer files.
struct RotaryScaling {
  std::string name;  ///< of the object
  std::string type;  ///< empty: none
  Json values = Json::object();

  /// What two objects that mean the same have in common.
  Json meaning() const {
    Json json = values;
    for (const char* key : {"type", "rope_type", "rope_theta", "partial_rotary_factor"}) json.erase(key);
    // Without scaling, sections of heads are all that counts.
    if (type.empty()) {
      json = Json::object();
      if (values.contains("mrope_section")) json["mrope_section"] = values["mrope_section"];
    }
    json["type"] = type;
    return json;
  }
};

bool is_neutral_type(const std::string& type) {
  return type == "default" || type == "mrope" || type == "rope";
}

/// The word that both spellings of the type agree on; empty for none.
Result<std::string> type_of(const std::string& name, const Json& values) {
  std::string type;
  bool is_said = false;
  for (const char* key : {"type", "rope_type"}) {
    const auto found = values.find(key);
    if (found == values.end() || found->is_null()) continue;
    if (!found->is_string()) return fail(Errc::invalid_argument, "key '{}.{}' is not text", name, key);
    auto word = found->get<std::string>();
    if (is_neutral_type(word)) word.clear();
    if (is_said && word != type)
      return fail(Errc::invalid_argument,
                  "key '{}.rope_type' is {}, and '{}.type' is {}; versions of transformers differ in which "
                  "they read: leave one of them",
                  name, found->dump(), name, values["type"].dump());
    type = std::move(word);
    is_said = true;
  }
  if (!is_said && values.contains("factor") && !values["factor"].is_null())
    return fail(Errc::invalid_argument,
                "key '{}' has a factor and no rope_type, so transformers does not scale; say \"rope_type\": "
                "\"linear\" if it should, else remove the factor",
                name);
  if (type == "linear" && values.value("factor", Json()) == 1) type.clear();
  return type;
}

Result<std::vector<RotaryScaling>> objects_of(ConfigReader& keys) {
  std::vector<RotaryScaling> found;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    for (const auto* json : keys.find_all(name)) {
      if (!json->is_object()) return fail(Errc::invalid_argument, "key '{}' must be an object or null", name);
      if (json->empty()) continue;
      auto type = TRY(type_of(name, *json));
      found.push_back({name, std::move(type), *json});
    }
  }
  return found;
}

/// transformers 5 takes rope_scaling where both are given, older versions know only that.
Result<RotaryScaling> scaling_of(ConfigReader& keys, const std::vector<RotaryScaling>& objects) {
  for (std::size_t i = 1; i < objects.size(); ++i) {
    const auto first = objects[0].meaning(), other = objects[i].meaning();
    if (first != other)
      return fail(Errc::invalid_argument,
                  "keys '{}' and '{}' disagree: {} and {}; versions of transformers differ in which they "
                  "read: remove the wrong one, or set it with --key",
                  objects[0].name, objects[i].name, objects[0].values.dump().substr(0, 80),
                  objects[i].values.dump().substr(0, 80));
  }
  auto scaling = objects.empty() ? RotaryScaling{} : objects.front();
  // Outside the object it wins over the one inside.
  const auto* outside = keys.find("original_max_position_embeddings");
  if (outside == nullptr || scaling.type.empty() || scaling.type == "linear") return scaling;
  auto& inside = scaling.values["original_max_position_embeddings"];
  if (inside.is_null()) inside = *outside;
  if (inside != *outside)
    return fail(Errc::invalid_argument,
                "key 'original_max_position_embeddings' is {}, and in '{}' it is {}; remove the wrong one",
                outside->dump(), scaling.name, inside.dump());
  return scaling;
}

/// A number that may be at the root, in text_config and in the objects, where all must agree.
Result<std::optional<double>> agreed_number(ConfigReader& keys, const std::vector<RotaryScaling>& objects,
                                            const char* key) {
  std::optional<double> agreed;
  std::string where;
  const auto add = [&](const Json& json, std::string name) -> Result<void> {
    double value = 0;
    if (!take(json, value)) return fail(Errc::invalid_argument, "key '{}' is not a number", name);
    if (agreed && *agreed != value)
      return fail(Errc::invalid_argument,
                  "key '{}' is {}, and '{}' is {}; versions of transformers differ in which they read: leave "
                  "the right one, or set both with --key",
                  where, *agreed, name, value);
    agreed = value;
    where = std::move(name);
    return {};
  };
  for (const auto* json : keys.find_all(key)) TRY(add(*json, key));
  for (const auto& object : objects) {
    const auto found = object.values.find(key);
    if (found != object.values.end() && !found->is_null())
      TRY(add(*found, fmt::format("{}.{}", object.name, key)));
  }
  return agreed;
}

void scale_latent_attention(ConfigReader& values, const std::string& type, TransformerConfig& config) {
  config.rope_type = type.empty() ? "rope" : type;
  if (config.rope_type != "rope" && config.rope_type != "yarn")
    values.refuse("type", "only rope and yarn are there for this attention");
  config.rotary_scaling_factor = values.value_or("factor", 1.0);
  config.original_max_position_embeddings =
      values.value_or("original_max_position_embeddings", std::int64_t{4096});
  config.beta_fast = values.value_or("beta_fast", 32.0);
  config.beta_slow = values.value_or("beta_slow", 1.0);
  config.mscale = values.value_or("mscale", 1.0);
  config.mscale_all_dim = values.value_or("mscale_all_dim", 1.0);
}

/// Scales only what is longer than the model's positions.
void limit_dynamic(ConfigReader& values, const std::string& name, std::vector<PositionLimit>* limits,
                   const BuilderConfig& builder) {
  values.required<double>("factor");
  const auto positions = values.value_or("original_max_position_embeddings", builder.max_sequence_length);
  if (limits == nullptr) return values.refuse("type", "'dynamic' is not a scaling that this model can have");
  limits->push_back({name, std::min(positions, builder.max_sequence_length)});
}

void scale_positions(ConfigReader& values, const RotaryScaling& scaling, std::vector<PositionLimit>* limits,
                     BuilderConfig& builder) {
  const auto& type = scaling.type;
  if (type == "linear") {
    builder.seq_len_interpolation_factor = values.required<double>("factor");
    values.find("original_max_position_embeddings");  // read by other scalings only
  } else if (type == "llama3") {
    builder.rope_scaling = true;
    builder.rope_scaling_factor = values.required<double>("factor");
    const bool built_in = values.required<double>("low_freq_factor") == kLlama3LowFrequency &&
                          values.required<double>("high_freq_factor") == kLlama3HighFrequency &&
                          values.size("original_max_position_embeddings") == kLlama3Positions;
    if (!built_in)
      values.refuse("low_freq_factor", "only 1, 4 and 8192 positions are there for the type llama3");
  } else if (type == "dynamic") {
    limit_dynamic(values, scaling.name, limits, builder);
  } else if (!type.empty()) {
    values.refuse("type", "'" + type + "' is not a scaling that this model can have");
  }
}

void read_sections(ConfigReader& values, ModelConfig& model) {
  auto& sections = model.transformer.mrope_section;
  sections = values.value_or("mrope_section", std::vector<std::int64_t>{});
  if (model.architecture == Architecture::qwen2_5_vl && sections.empty())
    values.complain("key 'rope_scaling.mrope_section' is missing");
  if (sections.empty()) sections = {24, 20, 20};
  if (model.architecture != Architecture::qwen2_5_vl) values.must_be("mrope_interleaved", true);
}

}  // namespace

Result<void> convert_rotary(ConfigReader& keys, const ConvertOptions& options,
                            std::vector<PositionLimit>* limits, ModelConfig& model) {
  const auto objects = TRY(objects_of(keys));
  const auto scaling = TRY(scaling_of(keys, objects));
  const auto theta = TRY(agreed_number(keys, objects, "rope_theta"));
  model.builder.rotary_base = theta.value_or(facts_of(model.architecture).rope_theta);
  const bool is_glm = model.architecture == Architecture::glm4_moe;
  // GLM turns half of a head unless the file says otherwise.
  const auto part = TRY(agreed_number(keys, objects, "partial_rotary_factor"));
  model.builder.rotary_percent = part.value_or(is_glm ? 0.5 : 1.0);
  if (!is_glm && model.builder.rotary_percent != 1)
    keys.refuse("partial_rotary_factor", "only 1.0 can be converted");

  const auto prefix = scaling.name.empty() ? "rope_scaling." : scaling.name + ".";
  ConfigReader values(scaling.values, nullptr, prefix, options.ignored);
  for (const char* key : {"type", "rope_type", "rope_theta", "partial_rotary_factor"}) values.find(key);
  auto& config = model.transformer;
  if (has_latent_attention(model.architecture)) {
    scale_latent_attention(values, scaling.type, config);
    config.rotary_base = model.builder.rotary_base;
  } else {
    scale_positions(values, scaling, limits, model.builder);
  }
  if (has_vision(model.architecture)) read_sections(values, model);
  // Without scaling, other values are meaningless.
  if (scaling.type.empty())
    for (const char* key : {"factor", "original_max_position_embeddings", "low_freq_factor",
                            "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
                            "mscale_all_dim", "short_factor", "long_factor"})
      values.find(key);
  return values.finish(nullptr);
}

}  // namespace troupe::core
