#include "core/models/huggingface_rules.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

const std::set<std::string_view>& harmless_vision_keys() {
  static const std::set<std::string_view> kKeys{"model_type", "tokens_per_second", "initializer_range",
                                                "dtype",      "torch_dtype",       "in_chans"};
  return kKeys;
}

/// The tower of Qwen2.5-VL has the same sizes in every model except for the width of its layers.
void convert_fixed_tower(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model) {
  auto& vision = *model.vision;
  const auto layers = model.transformer.num_layers;
  vision.num_layers = 32 * std::max(1, options.virtual_pipeline);
  vision.hidden_size = 1280;
  vision.num_attention_heads = 16;
  vision.ffn_hidden_size = layers == 28 || layers == 36 ? 3420 : 3456;
  vision.patch_size = 14;
  vision.temporal_patch_size = 2;
  vision.spatial_merge_size = 2;
  vision.window_size = 112;
  vision.full_attention_blocks = {7, 15, 23, 31};
  vision.projector_ffn_hidden_size = vision.hidden_size * 4;
  vision.out_hidden_size = model.transformer.hidden_size;
  keys.must_be("depth", 32);
  keys.must_be("hidden_size", vision.hidden_size);
  keys.must_be("num_heads", vision.num_attention_heads);
  keys.must_be("intermediate_size", vision.ffn_hidden_size);
  keys.must_be("patch_size", vision.patch_size);
  keys.must_be("spatial_patch_size", vision.patch_size);
  keys.must_be("temporal_patch_size", vision.temporal_patch_size);
  keys.must_be("spatial_merge_size", vision.spatial_merge_size);
  keys.must_be("window_size", vision.window_size);
  keys.must_be("fullatt_block_indexes", vision.full_attention_blocks);
  keys.must_be("in_channels", vision.in_channels);
  keys.must_be("hidden_act", "silu");
  keys.must_be("out_hidden_size", vision.out_hidden_size);
}

void copy_tower(ConfigReader& keys, ModelConfig& model) {
  auto& vision = *model.vision;
  vision.num_layers = keys.size("depth");
  vision.hidden_size = keys.size("hidden_size");
  vision.num_attention_heads = keys.size("num_heads");
  vision.ffn_hidden_size = keys.size("intermediate_size");
  vision.in_channels = keys.value_or("in_channels", std::int64_t{3});
  vision.patch_size = keys.size("patch_size");
  vision.temporal_patch_size = keys.size("temporal_patch_size");
  vision.spatial_merge_size = keys.size("spatial_merge_size");
  vision.num_position_embeddings = keys.size("num_position_embeddings");
  vision.out_hidden_size = keys.size("out_hidden_size");
  vision.deepstack_visual_indexes = keys.value_or("deepstack_visual_indexes", std::vector<std::int64_t>{});
  if (vision.spatial_merge_size <= 64 && vision.hidden_size <= (std::int64_t{1} << 20))
    vision.projector_ffn_hidden_size =
        vision.hidden_size * vision.spatial_merge_size * vision.spatial_merge_size;
  keys.must_be("hidden_act", "gelu_pytorch_tanh");
}

}  // namespace

void check_common_keys(ConfigReader& keys, Architecture architecture) {
  const auto* activation = keys.find("hidden_act");
  if (activation != nullptr && *activation != "swish") keys.must_be("hidden_act", "silu");
  if (architecture == Architecture::llama || architecture == Architecture::llama_token_classification)
    keys.must_be("mlp_bias", false);
  keys.find("attention_bias");  // optional biases were read before; the others are always or never present
  if (is_value_model(architecture)) {
    keys.must_be("classifier_dropout", 0.0);
  } else {
    keys.find("classifier_dropout");
  }
}

Result<void> convert_vision(ConfigReader& keys, const ConvertOptions& options, ModelConfig& model) {
  static const Json kNothing = Json::object();
  const auto* found = keys.find("vision_config");
  keys.find("text_config");
  if (found != nullptr && !found->is_object())
    return fail(Errc::invalid_argument, "key 'vision_config' must be an object");
  static const Json kRotary = {{"rope_theta", 10000.0}, {"rope_type", "axial"}};
  ConfigReader vision(found != nullptr ? *found : kNothing, nullptr, "vision_config.", options.ignored);
  model.vision.emplace();
  vision.must_be("rope_parameters", kRotary);
  if (model.architecture == Architecture::qwen2_5_vl) {
    convert_fixed_tower(vision, options, model);
  } else {
    copy_tower(vision, model);
  }
  return vision.finish(&model.kept, harmless_vision_keys());
}

}  // namespace troupe::core
