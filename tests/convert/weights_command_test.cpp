#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/interop/huggingface.hpp"
#include "tests/convert/convert_tool.hpp"
#include "tests/convert/small_model.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

/// Runs a conversion that goes well.
void convert(const Words& words) {
  const auto run = run_convert(Words{"weights"} + words);
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

std::string refusal(const Words& words) {
  const auto run = run_convert(Words{"weights"} + words);
  EXPECT_EQ(run.exit_code, 2) << run.out;
  return run.err;
}

struct RoundTrip {
  std::string model;
  Words mesh;

  friend std::ostream& operator<<(std::ostream& out, const RoundTrip& of) {
    return out << of.model << " " << testing::PrintToString(of.mesh);
  }
};

class EveryModel : public testing::TestWithParam<RoundTrip> {};

// Covers ranks-25.
TEST_P(EveryModel, ComesBackFromMegatronByteForByte) {
  const auto& [model, mesh] = GetParam();
  const ScratchFolder directory;
  const auto config = small_config(model);
  const auto tensors = small_tensors(config);
  write_model(directory.path("in"), config, tensors);

  convert(Words{directory.path("in"), directory.path("parts"), "--to", "megatron", "--vocab-multiple", "4"} +
          mesh);
  convert({directory.path("parts"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});

  EXPECT_EQ(read_model(directory.path("out")), tensors);
  const auto before = Json::parse(config);
  const auto after = Json::parse(read_text(directory.path("out/config.json")));
  for (const char* key : {"architectures", "hidden_size", "num_hidden_layers", "vocab_size", "rope_theta"})
    EXPECT_EQ(after[key], before[key]) << key;
}

TEST_P(EveryModel, ComesBackFromACheckpointByteForByte) {
  const ScratchFolder directory;
  const auto config = small_config(GetParam().model);
  const auto tensors = small_tensors(config);
  write_model(directory.path("in"), config, tensors);

  convert({directory.path("in"), directory.path("run"), "--to", "troupe", "--max-shard-bytes", "700"});
  convert({directory.path("run"), directory.path("out"), "--from", "troupe", "--to", "huggingface"});

  EXPECT_TRUE(fs::exists(directory.path("run/step_00000000/manifest.json")));
  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EveryModel,
    testing::Values(RoundTrip{"Qwen2.5-7B", {"--tp", "4", "--pp", "2"}},  // fewer groups than ranks
                    RoundTrip{"Qwen3-8B", {"--tp", "2", "--pp", "2", "--vpp", "2"}},
                    RoundTrip{"deepseek-coder-1.3b", {"--pp", "4"}},
                    RoundTrip{"Mistral-7B-v0.3", {"--tp", "2"}},
                    RoundTrip{"Qwen2-57B-A14B", {"--tp", "2", "--ep", "2"}},
                    RoundTrip{"Qwen3-30B-A3B", {"--ep", "4", "--etp", "2"}},
                    RoundTrip{"Mixtral-8x7B", {"--tp", "2", "--pp", "2", "--ep", "2", "--etp", "1"}},
                    RoundTrip{"DeepSeek-V3", {"--tp", "2", "--pp", "2", "--ep", "2"}},
                    RoundTrip{"GLM-4.5-Air", {"--tp", "2", "--ep", "4"}}),
    [](const auto& instance) {
      std::string name = instance.param.model;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

TEST(ConvertWeights, ReshardsFromOneMeshToAnother) {
  const ScratchFolder directory;
  const auto config = small_config("Mixtral-8x7B");
  write_model(directory.path("in"), config, small_tensors(config));
  const Words other{"--to", "megatron", "--tp", "2", "--pp", "4", "--ep", "2", "--etp", "1"};
  convert(Words{directory.path("in"), directory.path("direct")} + other);
  convert({directory.path("in"), directory.path("first"), "--to", "megatron", "--tp", "4", "--ep", "4"});

  convert(Words{directory.path("first"), directory.path("second"), "--from", "megatron"} + other);

  EXPECT_EQ(read_text(directory.path("second/pp003_tp01.safetensors")),
            read_text(directory.path("direct/pp003_tp01.safetensors")));
  EXPECT_EQ(read_text(directory.path("second/pp001_ep001_etp00.safetensors")),
            read_text(directory.path("direct/pp001_ep001_etp00.safetensors")));
}

// Covers ranks-26.
TEST(ConvertWeights, ConvertsDtypesButThoseOfTheExpertsBiases) {
  const ScratchFolder directory;
  const auto config = small_config("DeepSeek-V3");
  const auto tensors = small_tensors(config);
  write_model(directory.path("in"), config, tensors);

  convert({directory.path("in"), directory.path("wide"), "--to", "huggingface", "--dtype", "f32"});
  convert({directory.path("wide"), directory.path("back"), "--to", "huggingface", "--dtype", "bf16"});

  EXPECT_EQ(read_model(directory.path("wide"))["lm_head.weight"].dtype, core::DType::f32);
  EXPECT_EQ(read_model(directory.path("back")), tensors);
  EXPECT_EQ(Json::parse(read_text(directory.path("wide/config.json")))["torch_dtype"], "float32");
  EXPECT_EQ(Json::parse(read_text(directory.path("back/config.json")))["torch_dtype"], "bfloat16");
  const auto index = Json::parse(read_text(directory.path("wide/model.safetensors.index.json")));
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : read_model(directory.path("wide"))) bytes += tensor.bytes.size();
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
}

TEST(ConvertWeights, SplitsFilesAndNamesThemInTheIndex) {
  const ScratchFolder directory;
  const auto config = small_config("Qwen2.5-7B");
  const auto tensors = small_tensors(config);
  write_model(directory.path("in"), config, tensors);

  convert({directory.path("in"), directory.path("out"), "--to", "huggingface", "--max-shard-bytes", "1000"});

  const auto index =
      core::parse_huggingface_index(read_text(directory.path("out/model.safetensors.index.json")));
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(index->weight_map.size(), tensors.size());
  for (const auto& [name, file] : index->weight_map) EXPECT_TRUE(fs::exists(directory.path("out/" + file)));
  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

class DamagedModel : public testing::Test {
 protected:
  DamagedModel() { write_model(directory.path("in"), config, tensors); }

  std::string converted(const Words& more = {}) {
    const auto message =
        refusal(Words{directory.path("in"), directory.path("out"), "--to", "megatron"} + more);
    EXPECT_FALSE(fs::exists(directory.path("out")));
    return message;
  }

  ScratchFolder directory;
  std::string config = small_config("Qwen3-8B");
  StoredTensors tensors = small_tensors(config);
  std::string shard = directory.path("in/model-00002-of-00002.safetensors");
};

TEST_F(DamagedModel, NamesAShardThatIsMissing) {
  fs::remove(shard);

  EXPECT_THAT(converted(), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(DamagedModel, NamesAShardThatIsCutAnywhere) {
  const auto whole = read_text(shard);

  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() - 1}) {
    write_text(shard, whole.substr(0, length));
    EXPECT_THAT(converted(), HasSubstr("model-00002-of-00002.safetensors")) << length;
  }
}

TEST_F(DamagedModel, NamesAnAlteredShardOfWhatItWrote) {
  convert({directory.path("in"), directory.path("parts"), "--to", "megatron", "--tp", "2"});
  auto bytes = read_text(directory.path("parts/pp000_tp01.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(directory.path("parts/pp000_tp01.safetensors"), bytes);

  const auto message =
      refusal({directory.path("parts"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});

  EXPECT_THAT(message, HasSubstr("pp000_tp01.safetensors"));
  EXPECT_FALSE(fs::exists(directory.path("out")));
}

TEST_F(DamagedModel, NamesAnAlteredShardOfAnExportedModel) {
  convert({directory.path("in"), directory.path("again"), "--to", "huggingface"});
  auto bytes = read_text(directory.path("again/model.safetensors"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(directory.path("again/model.safetensors"), bytes);

  EXPECT_THAT(refusal({directory.path("again"), directory.path("out"), "--to", "megatron"}),
              HasSubstr("model.safetensors"));
}

TEST_F(DamagedModel, NamesATensorThatIsMissing) {
  tensors.erase("model.layers.2.mlp.up_proj.weight");
  write_model(directory.path("in"), config, tensors);

  EXPECT_THAT(converted(), HasSubstr("no file has the tensor 'model.layers.2.mlp.up_proj.weight'"));
}

TEST_F(DamagedModel, NamesATensorOfAnotherShape) {
  auto& tensor = tensors["model.norm.weight"];
  tensor.shape = {8};
  tensor.bytes.resize(16);
  write_model(directory.path("in"), config, tensors);

  EXPECT_THAT(converted(), HasSubstr("'model.norm.weight' has the shape (8), by config.json it has (16)"));
}

TEST_F(DamagedModel, LeavesNoTensorOutUnlessItIsTold) {
  tensors["model.layers.0.self_attn.o_proj.bias"] = tensors["model.norm.weight"];
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"];
  write_model(directory.path("in"), config, tensors);

  EXPECT_THAT(converted(), HasSubstr("'model.layers.0.self_attn.o_proj.bias' has no place"));
  convert({directory.path("in"), directory.path("out"), "--to", "megatron", "--ignore-tensor",
           "model.layers.0.self_attn.o_proj.bias"});
}

TEST_F(DamagedModel, RefusesPartsOfOneTensorThatHaveOtherDtypes) {
  auto& tensor = tensors["model.layers.1.self_attn.k_proj.weight"];
  tensor.dtype = core::DType::f16;
  write_model(directory.path("in"), config, tensors);

  EXPECT_THAT(refusal({directory.path("in"), directory.path("out"), "--to", "megatron"}),
              HasSubstr("'model.layers.1.self_attn.k_proj.weight' has dtype f16"));
}

TEST_F(DamagedModel, StaysAwayFromWhatIsThere) {
  write_text(directory.path("out"), "something");

  EXPECT_THAT(refusal({directory.path("in"), directory.path("out"), "--to", "megatron"}),
              HasSubstr("already there"));
  EXPECT_EQ(read_text(directory.path("out")), "something");
}

TEST_F(DamagedModel, SaysWhichStagesWouldDo) {
  EXPECT_THAT(converted({"--pp", "3"}), HasSubstr("4 layers do not divide into 3 stages"));
}

TEST(ConvertWeights, TakesStagesOfOtherNumbersOfLayers) {
  const ScratchFolder directory;
  const auto config = small_config("Qwen3-8B", 5);
  const auto tensors = small_tensors(config);
  write_model(directory.path("in"), config, tensors);

  convert({directory.path("in"), directory.path("parts"), "--to", "megatron", "--pp", "2", "--set",
           "num_layers_in_first_pipeline_stage=2"});
  convert({directory.path("parts"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});

  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

// In Hugging Face's cache the files of a model are links.
TEST(ConvertWeights, ReadsASnapshotOfTheCache) {
  const ScratchFolder directory;
  const auto config = small_config("Qwen3-8B");
  const auto tensors = small_tensors(config);
  write_model(directory.path("blobs"), config, tensors);
  fs::create_directories(directory.path("snapshots/0123abcd"));
  for (const auto& entry : fs::directory_iterator(directory.path("blobs"))) {
    const auto name = entry.path().filename().string();
    fs::create_symlink("../../blobs/" + name, directory.path("snapshots/0123abcd/" + name));
  }

  convert({directory.path("snapshots/0123abcd"), directory.path("parts"), "--to", "megatron"});
  convert({directory.path("parts"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});

  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

TEST(ConvertWeights, AcceptsTheCopyOfATiedEmbedding) {
  const ScratchFolder directory;
  auto json = Json::parse(small_config("Qwen3-8B"));
  json["tie_word_embeddings"] = true;
  const auto tensors = small_tensors(json.dump());
  auto more = tensors;
  more["lm_head.weight"] = more.at("model.embed_tokens.weight");
  write_model(directory.path("in"), json.dump(), more);

  convert({directory.path("in"), directory.path("parts"), "--to", "megatron", "--pp", "2", "--tp", "2"});
  convert({directory.path("parts"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});

  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

TEST(ConvertWeights, RefusesUncopiedTiedHeadsUnlessToldWhatToDo) {
  const ScratchFolder directory;
  auto json = Json::parse(small_config("Qwen3-8B"));
  auto tensors = small_tensors(json.dump());
  json["tie_word_embeddings"] = true;
  write_model(directory.path("in"), json.dump(), tensors);
  const std::vector<std::string> words{"weights", directory.path("in"), directory.path("parts"), "--to",
                                       "megatron"};

  const auto run = run_convert(words);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("'lm_head.weight' is stored and differs from 'model.embed_tokens.weight'"));

  convert({directory.path("in"), directory.path("stored"), "--to", "megatron", "--key",
           "tie_word_embeddings=false"});
  convert({directory.path("stored"), directory.path("out"), "--from", "megatron", "--to", "huggingface"});
  EXPECT_EQ(read_model(directory.path("out")), tensors);

  convert({directory.path("in"), directory.path("tied"), "--to", "megatron", "--ignore-tensor", "lm_head"});
  convert({directory.path("tied"), directory.path("other"), "--from", "megatron", "--to", "huggingface"});
  tensors.erase("lm_head.weight");
  EXPECT_EQ(read_model(directory.path("other")), tensors);
}

TEST(ConvertWeights, ReadsTheOneFileBesideAStaleIndex) {
  const ScratchFolder directory;
  const auto config = small_config("Qwen3-8B");
  const auto tensors = small_tensors(config);
  auto stale = tensors;
  for (auto& [name, tensor] : stale) tensor.bytes.assign(tensor.bytes.size(), std::byte{0});
  write_model(directory.path("one"), config, tensors);
  convert({directory.path("one"), directory.path("single"), "--to", "huggingface"});
  write_model(directory.path("in"), config, stale);
  fs::copy_file(directory.path("single/model.safetensors"), directory.path("in/model.safetensors"));

  const auto run =
      run_convert({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("not read: model-00001-of-00002.safetensors"));
  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

// DeepSeek-V3 as published, and GLM-4.5: transformers does not read these layers either.
TEST(ConvertWeights, OmitsOnlyLayersThatPredictMoreTokens) {
  const ScratchFolder directory;
  auto json = Json::parse(small_config("DeepSeek-V3", 3));
  const auto tensors = small_tensors(json.dump());
  auto more = tensors;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with("model.layers.2.")) more["model.layers.3." + name.substr(15)] = tensor;
  }
  json["num_nextn_predict_layers"] = 1;
  write_model(directory.path("wrong"), json.dump(), more);
  more["model.layers.3.eh_proj.weight"] = more["model.layers.3.enorm.weight"] = more.at("model.norm.weight");
  write_model(directory.path("in"), json.dump(), more);

  const auto wrong =
      run_convert({"weights", directory.path("wrong"), directory.path("none"), "--to", "megatron"});
  const auto run =
      run_convert({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});

  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("tensor 'model.layers.3."));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("layers from 3 on, which predict more tokens, are left out"));
  EXPECT_EQ(read_model(directory.path("out")), tensors);
}

}  // namespace
}  // namespace troupe::apps
