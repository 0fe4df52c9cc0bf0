#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/models/huggingface_rules.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

/// Which layers a class of transformers gives a window.
enum class Windows : std::uint8_t {
  none,       ///< the class does not read the key
  all,        ///< all, when there is a window
  all_asked,  ///< all, when use_sliding_window says so
  last,       ///< those from max_window_layers on, when asked
  even,       ///< every second one below max_window_layers, when asked
};

Windows windows_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::mistral:
    case Architecture::mixtral:
      return Windows::all;
    case Architecture::qwen3_moe:
      return Windows::all_asked;
    case Architecture::qwen2:
    case Architecture::mimo:
    case Architecture::qwen3:
    case Architecture::qwen3_token_classification:
    case Architecture::qwen2_5_vl:
      return Windows::last;
    case Architecture::qwen2_moe:
      return Windows::even;
    default:
      return Windows::none;
  }
}

/// What transformers takes where the key is missing.
constexpr std::int64_t kWindow = 4096;
constexpr std::int64_t kFullLayers = 28;
constexpr std::int64_t kFullLayersOfQwen25Vl = 80;

/// 1 for a layer with a window, as in Megatron's list; empty for a name that is neither.
std::vector<std::int64_t> layers_by_type(const Json& types) {
  std::vector<std::int64_t> windows;
  for (const auto& type : types) {
    if (type != "full_attention" && type != "attention" && type != "sliding_attention") return {};
    windows.push_back(type == "sliding_attention" ? 1 : 0);
  }
  return windows;
}

std::vector<std::int64_t> layers_by_rule(Windows rule, std::int64_t layers, std::int64_t boundary) {
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < std::min(layers, kMaxLayers); ++layer) {
    bool has = rule == Windows::all || rule == Windows::all_asked;
    if (rule == Windows::last) has = layer >= boundary;
    if (rule == Windows::even) has = layer % 2 == 0 && layer < boundary;
    windows.push_back(has ? 1 : 0);
  }
  return windows;
}

bool has_any(const std::vector<std::int64_t>& windows) {
  return std::find(windows.begin(), windows.end(), 1) != windows.end();
}

/// A limit that no field expresses: transformers trains without it, and follows it in the cache from which it
/// generates.
void limit(ConfigReader& keys, const char* key, std::int64_t positions, std::vector<PositionLimit>* limits,
           const ModelConfig& model) {
  if (positions >= model.builder.max_sequence_length && positions > 0) return;
  if (positions > 0 && limits != nullptr) return limits->push_back({key, positions});
  keys.refuse(key,
              fmt::format("transformers trains this architecture without it and generates with a cache of "
                          "{} of the {} positions; --key {}=null is for a model without it",
                          positions, model.builder.max_sequence_length, key));
}

void set_windows(ConfigReader& keys, std::int64_t window, std::vector<std::int64_t> windows,
                 std::vector<PositionLimit>* limits, TransformerConfig& config) {
  if (!has_any(windows)) return;
  if (window < 1) return keys.refuse("sliding_window", "a window has at least one position");
  config.window_size = {window - 1, 0};
  if (limits != nullptr) limits->push_back({"sliding_window", window});
  if (std::find(windows.begin(), windows.end(), 0) != windows.end())
    config.window_attn_skip_freq = std::move(windows);
}

}  // namespace

void convert_windows(ConfigReader& keys, std::vector<PositionLimit>* limits, ModelConfig& model) {
  auto& config = model.transformer;
  const auto rule = windows_of(model.architecture);
  const auto asked = keys.maybe<bool>("use_sliding_window");
  const auto boundary =
      keys.value_or("max_window_layers",
                    model.architecture == Architecture::qwen2_5_vl ? kFullLayersOfQwen25Vl : kFullLayers);
  auto window = keys.maybe<std::int64_t>("sliding_window");
  // Classes that make up layer_types do not look at it, and neither do their caches.
  const bool has_types = rule == Windows::last || rule == Windows::even;
  const auto chunk = keys.maybe<std::int64_t>("attention_chunk_size");
  if (chunk && !has_types) limit(keys, "attention_chunk_size", *chunk, limits, model);
  const auto* types = keys.find("layer_types");
  std::vector<std::int64_t> by_type;
  if (types != nullptr && !types->empty()) {
    if (types->is_array()) by_type = layers_by_type(*types);
    if (by_type.empty())
      return keys.refuse("layer_types", "only full_attention and sliding_attention are there");
  }
  if (rule == Windows::none) {
    const bool is_off = asked.has_value() && !*asked && !has_any(by_type);
    if (window.value_or(0) != 0 && !is_off) return limit(keys, "sliding_window", *window, limits, model);
    if (has_any(by_type)) keys.refuse("layer_types", "there is no sliding_window for them");
    return;
  }
  const bool needs_asking = rule != Windows::all;
  if (!window && !keys.is_said("sliding_window") && model.architecture != Architecture::mixtral)
    window = kWindow;
  const bool has_window = window.has_value() && (!needs_asking || asked.value_or(false));
  if (!has_window) {
    if (has_any(by_type))
      keys.refuse("layer_types", window ? "use_sliding_window is not true, so no layer has a window"
                                        : "there is no sliding_window for them");
    return;
  }
  if (!needs_asking && asked.has_value() && !*asked)
    return keys.refuse("use_sliding_window",
                       "it is false, and this architecture has a sliding_window "
                       "whatever it says; set sliding_window to null for none");
  auto windows = layers_by_rule(rule, config.num_layers, boundary);
  if (!by_type.empty()) {
    if (!has_types && by_type != windows)
      return keys.refuse("layer_types", "this architecture has the same attention in every layer");
    if (static_cast<std::int64_t>(by_type.size()) != config.num_layers)
      return keys.refuse("layer_types",
                         fmt::format("it has {} entries for {} layers", by_type.size(), config.num_layers));
    windows = std::move(by_type);
  }
  set_windows(keys, *window, std::move(windows), limits, config);
}

}  // namespace troupe::core
