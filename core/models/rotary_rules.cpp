#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
    if (word == "su") word = "longrope";
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

/// What is missing is as transformers has it: without both factors cosines are scaled by that of 1, and
/// attention is not.
void read_latent_factors(ConfigReader& values, TransformerConfig& config) {
  const auto mscale = values.value_or("mscale", 0.0), all_dim = values.value_or("mscale_all_dim", 0.0);
  config.mscale = mscale == 0 ? 1 : mscale;
  config.mscale_all_dim = all_dim;
  if ((all_dim == 0 && config.mscale != 1) || (mscale == 0 && all_dim != 0))
    values.complain(
        "keys 'mscale' and 'mscale_all_dim' of yarn are read together by transformers, and one by one by "
        "DeepSeek's own class: give both, or none");
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
  if (type == "yarn") return read_latent_factors(values, config);
  config.mscale = values.value_or("mscale", 1.0);
  config.mscale_all_dim = values.value_or("mscale_all_dim", 1.0);
}

/// The factor of cosines and sines, if the file gives it.
std::optional<double> attention_factor_of(ConfigReader& values) {
  const auto factor = values.maybe<double>("attention_factor");
  if (factor && !(*factor > 0)) values.refuse("attention_factor", "it must be above 0");
  return factor;
}

/// The positions that the model knew before; by default all that it has now.
std::int64_t original_positions(ConfigReader& values, const BuilderConfig& builder) {
  const auto positions = values.value_or("original_max_position_embeddings", builder.max_sequence_length);
  if (positions < 1) values.refuse("original_max_position_embeddings", "it must be at least 1");
  return positions;
}

/// Like _compute_yarn_parameters() of transformers 5: without a factor it is the quotient of positions, and 0
/// is the same as no value.
void scale_as_yarn(ConfigReader& values, ConvertedModel& converted, bool takes_details) {
  auto& builder = converted.config.builder;
  const auto some = [&](const char* key) {
    const auto value = values.maybe<double>(key);
    return value && *value != 0 ? value : std::nullopt;
  };
  const auto original = original_positions(values, builder);
  const auto quotient = static_cast<double>(builder.max_sequence_length) / static_cast<double>(original);
  const auto factor = values.maybe<double>("factor").value_or(quotient);
  if (!(factor >= 1)) values.refuse("factor", "it must be at least 1");
  builder.position_embedding_type = "yarn";
  builder.yarn_rotary_scaling_factor = factor;
  builder.yarn_original_max_position_embeddings = original;
  builder.yarn_beta_fast = some("beta_fast").value_or(32);
  builder.yarn_beta_slow = some("beta_slow").value_or(1);
  if (!(*builder.yarn_beta_slow > 0 && *builder.yarn_beta_fast >= *builder.yarn_beta_slow))
    values.refuse("beta_fast", "beta_fast must be at least beta_slow, which must be above 0");
  const auto mscale = some("mscale"), all_dim = some("mscale_all_dim");
  if (mscale && all_dim) {
    builder.yarn_mscale = mscale;
    builder.yarn_mscale_all_dim = all_dim;
  }
  builder.yarn_correction_range_round_to_int = values.value_or("truncate", true);
  // Read by other programs, not by transformers.
  for (const char* key : {"attn_factor", "finetuned"}) values.find(key);

  const auto grown = [&](double scale) { return factor > 1 ? 0.1 * scale * std::log(factor) + 1 : 1; };
  const auto derived = mscale && all_dim ? grown(*mscale) / grown(*all_dim) : grown(1);
  const auto said = attention_factor_of(values);
  converted.rotary.attention_factor = said.value_or(derived);
  if (!takes_details && said && std::abs(*said - derived) > 1e-6 * derived)
    values.refuse("attention_factor", "Megatron derives it from factor, mscale and mscale_all_dim");
}

std::vector<double> pair_factors(ConfigReader& values, const std::string& key, std::int64_t pairs) {
  std::vector<double> factors;
  const auto* list = values.find(key);
  if (list == nullptr) {
    values.refuse(key, "it is missing");
    return factors;
  }
  bool good = list->is_array() && static_cast<std::int64_t>(list->size()) == pairs;
  for (std::size_t i = 0; good && i < list->size(); ++i) {
    good = take((*list)[i], factors.emplace_back()) && factors.back() > 0;
  }
  if (!good) values.refuse(key, fmt::format("it must be a list of {} numbers above 0, one per pair", pairs));
  return factors;
}

/// Like _compute_longrope_parameters() of transformers 5.
void scale_as_longrope(ConfigReader& values, ConvertedModel& converted) {
  const auto& model = converted.config;
  auto& rotary = converted.rotary;
  const auto heads = std::max<std::int64_t>(1, model.transformer.num_attention_heads);
  const auto head = model.transformer.kv_channels.value_or(model.transformer.hidden_size / heads);
  rotary.short_factors = pair_factors(values, "short_factor", head / 2);
  rotary.long_factors = pair_factors(values, "long_factor", head / 2);
  rotary.original_positions = original_positions(values, model.builder);
  const auto original = static_cast<double>(rotary.original_positions);
  const auto quotient = static_cast<double>(model.builder.max_sequence_length) / original;
  const auto factor = values.maybe<double>("factor").value_or(quotient);
  const auto derived = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
  rotary.attention_factor = attention_factor_of(values).value_or(derived);
  if (!std::isfinite(rotary.attention_factor))
    values.refuse("original_max_position_embeddings", "it must be above 1");
  // Keys of older versions.
  for (const char* key : {"short_mscale", "long_mscale"}) {
    if (values.find(key) != nullptr) values.refuse(key, "transformers does not read it");
  }
}

void scale_as_llama3(ConfigReader& values, ConvertedModel& converted, bool takes_details) {
  auto& rotary = converted.rotary;
  converted.config.builder.rope_scaling = true;
  converted.config.builder.rope_scaling_factor = values.required<double>("factor");
  rotary.low_frequency = values.required<double>("low_freq_factor");
  rotary.high_frequency = values.required<double>("high_freq_factor");
  rotary.original_positions = values.size("original_max_position_embeddings");
  const bool built_in = rotary.low_frequency == kLlama3LowFrequency &&
                        rotary.high_frequency == kLlama3HighFrequency &&
                        rotary.original_positions == kLlama3Positions;
  if (!built_in && !takes_details)
    values.refuse("low_freq_factor", "only 1, 4 and 8192 positions are there for the type llama3");
}

/// Scales only what is longer than the model's positions.
void limit_dynamic(ConfigReader& values, const std::string& name, std::vector<PositionLimit>* limits,
                   const BuilderConfig& builder) {
  values.required<double>("factor");
  const auto positions = values.value_or("original_max_position_embeddings", builder.max_sequence_length);
  if (limits == nullptr) return values.refuse("type", "'dynamic' is not a scaling that this model can have");
  limits->push_back({name, std::min(positions, builder.max_sequence_length)});
}

void scale_positions(ConfigReader& values, const RotaryScaling& scaling, bool takes_details,
                     ConvertedModel& converted) {
  const auto& type = scaling.type;
  auto& builder = converted.config.builder;
  if (type == "linear") {
    builder.seq_len_interpolation_factor = values.required<double>("factor");
    values.find("original_max_position_embeddings");  // read by other scalings only
  } else if (type == "llama3") {
    scale_as_llama3(values, converted, takes_details);
  } else if (type == "yarn" && !has_vision(converted.config.architecture)) {
    scale_as_yarn(values, converted, takes_details);
  } else if (type == "longrope" && takes_details) {
    scale_as_longrope(values, converted);
  } else if (type == "dynamic") {
    limit_dynamic(values, scaling.name, takes_details ? &converted.limits : nullptr, builder);
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

Result<void> convert_rotary(ConfigReader& keys, const ConvertOptions& options, ConvertedModel& converted) {
  auto& model = converted.config;
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
    scale_positions(values, scaling, options.takes_limits, converted);
  }
  if (has_vision(model.architecture)) read_sections(values, model);
  // Without scaling, other values are meaningless.
  if (scaling.type.empty())
    for (const char* key : {"factor", "original_max_position_embeddings", "low_freq_factor",
                            "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
                            "mscale_all_dim", "short_factor", "long_factor", "truncate"})
      values.find(key);
  return values.finish(nullptr);
}

}  // namespace troupe::core
