#include "tests/convert/small_model.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "core/checkpoint/safetensors.hpp"
#include "core/hash.hpp"
#include "core/interop/huggingface.hpp"
#include "core/models/weight_map.hpp"
#include "tests/convert/convert_tool.hpp"

namespace troupe::apps {

using Json = nlohmann::json;

std::string small_config(const std::string& published_model, std::int64_t layers) {
  auto json = Json::parse(read_text(golden_model(published_model + ".json")));
  const Json values = {{"num_hidden_layers", layers},
                       {"hidden_size", 16},
                       {"num_attention_heads", 8},
                       {"num_key_value_heads", 2},
                       {"head_dim", 2},
                       {"intermediate_size", 8},
                       {"vocab_size", 21},
                       {"moe_intermediate_size", 8},
                       {"num_experts", 4},
                       {"num_local_experts", 4},
                       {"n_routed_experts", 4},
                       {"num_experts_per_tok", 2},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"first_k_dense_replace", 1},
                       {"q_lora_rank", 6},
                       {"kv_lora_rank", 4},
                       {"qk_nope_head_dim", 2},
                       {"qk_rope_head_dim", 2},
                       {"v_head_dim", 4},
                       {"num_nextn_predict_layers", 0},
                       {"quantization_config", nullptr},
                       {"shared_expert_intermediate_size", 16}};
  for (const auto& [key, value] : values.items()) {
    if (json.contains(key) || key == "head_dim") json[key] = value;
  }
  return json.dump();
}

StoredTensors small_tensors(const std::string& config) {
  const auto model = core::from_huggingface(config, {});
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  const auto map = core::map_weights(model.value().config, {}).value();
  StoredTensors tensors;
  std::uint64_t seed = 0;
  for (const auto& input : map.plan.inputs) {
    const bool is_bias = input.name.ends_with("e_score_correction_bias");
    StoredTensor tensor{is_bias ? core::DType::f32 : core::DType::bf16, input.shape, {}};
    tensor.bytes.resize(static_cast<std::size_t>(core::elements_of(input.shape)) *
                        core::size_of(tensor.dtype));
    seed += 1;
    for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
      // Exponents of ordinary numbers, so that every one survives a conversion of dtypes.
      const bool high = i % core::size_of(tensor.dtype) == core::size_of(tensor.dtype) - 1;
      tensor.bytes[i] = static_cast<std::byte>(high ? 0x3f : core::hash64("element", seed * 1'000'003 + i));
    }
    tensors[input.name] = std::move(tensor);
  }
  return tensors;
}

namespace {

void write_file(const std::string& path, const StoredTensors& tensors) {
  std::vector<core::SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.dtype, tensor.shape, 0, 0});
  auto text = core::safetensors_header(entries, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors)
    text.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  write_text(path, text);
}

}  // namespace

void write_model(const std::string& directory, const std::string& config, const StoredTensors& tensors) {
  std::filesystem::create_directories(directory);
  write_text(directory + "/config.json", config);
  StoredTensors halves[2];
  core::HuggingFaceIndex index;
  for (const auto& [name, tensor] : tensors) {
    const auto part = index.weight_map.size() % 2;
    halves[part][name] = tensor;
    index.weight_map[name] = core::huggingface_file_name(part + 1, 2);
    index.total_bytes += tensor.bytes.size();
  }
  for (std::size_t part = 0; part < 2; ++part)
    write_file(directory + "/" + core::huggingface_file_name(part + 1, 2), halves[part]);
  write_text(directory + "/" + std::string(core::kHuggingFaceIndexName),
             core::encode_huggingface_index(index).value());
}

StoredTensors read_model(const std::string& directory) {
  StoredTensors tensors;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto text = read_text(entry.path().string());
    const auto header = core::parse_safetensors_header(std::as_bytes(std::span(text)), text.size());
    EXPECT_TRUE(header) << entry.path();
    if (!header) continue;
    for (const auto& one : header->entries) {
      const auto bytes = std::as_bytes(std::span(text)).subspan(one.begin, one.bytes());
      tensors[one.name] = {one.dtype, one.shape, {bytes.begin(), bytes.end()}};
    }
  }
  return tensors;
}

}  // namespace troupe::apps
