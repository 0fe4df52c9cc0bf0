#include "apps/gpt/pretrained/pretrained_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/gpt/pretrained/export_model.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/convert.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;
using core::Errc;
using core::Result;
using testing::AllOf;
using testing::HasSubstr;

ModelConfig small_model() {
  ModelConfig config = preset("tiny").value();
  config.key_value_heads = 1;
  config.query_key_norm = true;
  config.tied_embeddings = false;
  return config;
}

/// What the export below writes: no two elements of the model are equal, and bf16 holds none of them exactly.
float value_of(std::size_t parameter, std::int64_t element) {
  return 1.0F + static_cast<float>(parameter * 100'000 + static_cast<std::size_t>(element)) * 0x1p-22F;
}

Result<void> read_value(std::size_t parameter, core::ElementRange range, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = value_of(parameter, range.start + static_cast<std::int64_t>(i));
  return {};
}

class PretrainedModelTest : public testing::Test {
 protected:
  std::string directory(const std::string& name = "model") const { return folder_.path() + "/" + name; }

  /// `copies`: the head has the values of the embedding; `ties`: there is no head.
  void write(ExportOptions options = {}, bool copies = false, bool ties = false) const {
    options.directory = directory();
    auto config = small_model();
    config.tied_embeddings = ties;
    const auto specs = parameters(config);
    const auto read = [&](std::size_t parameter, core::ElementRange range, std::span<float> values) {
      return read_value(copies && specs[parameter].name == "lm_head.weight" ? 0 : parameter, range, values);
    };
    ASSERT_EQ(specs.front().name, "model.embed_tokens.weight");
    const auto written = export_model(config, read, options);
    ASSERT_TRUE(written) << written.error().message;
    if (ties) change_config("tie_word_embeddings", false);
  }

  void change_config(const std::string& key, const nlohmann::json& value) const {
    auto json = nlohmann::json::parse(std::ifstream(directory() + "/config.json"));
    json[key] = value;
    std::ofstream(directory() + "/config.json") << json.dump();
  }

  std::string error(std::size_t context = 0) const {
    const auto model = PretrainedModel::open(directory(), context);
    return model ? "opened" : model.error().message;
  }

  tests::ScratchFolder folder_;
};

TEST_F(PretrainedModelTest, ReadsAnyRangeOfWhatWasExported) {
  write();

  const auto model = PretrainedModel::open(directory(), 0);

  ASSERT_TRUE(model) << model.error().message;
  const auto specs = parameters((*model)->config());
  EXPECT_EQ(specs.size(), parameters(small_model()).size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto elements = static_cast<std::int64_t>(specs[i].elements());
    for (const core::ElementRange range :
         {core::ElementRange{0, elements}, {elements / 3, elements / 2 + 2}}) {
      std::vector<float> values(static_cast<std::size_t>(range.size()));
      const auto done = (*model)->read(specs[i], range, values);
      ASSERT_TRUE(done) << done.error().message;
      for (std::size_t j = 0; j < values.size(); ++j)
        ASSERT_EQ(values[j], value_of(i, range.start + static_cast<std::int64_t>(j))) << specs[i].name << j;
    }
  }
}

TEST_F(PretrainedModelTest, ReadsSeveralFilesOfNarrowNumbers) {
  write({.dtype = DType::bf16, .max_file_bytes = 5000});
  ASSERT_TRUE(std::filesystem::exists(directory() + "/model.safetensors.index.json"));
  ASSERT_FALSE(std::filesystem::exists(directory() + "/model.safetensors"));

  const auto model = PretrainedModel::open(directory(), 0);

  ASSERT_TRUE(model) << model.error().message;
  const auto specs = parameters((*model)->config());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::vector<float> values(specs[i].elements());
    ASSERT_TRUE((*model)->read(specs[i], values));
    for (std::size_t j = 0; j < values.size(); ++j) {
      const float expected = value_of(i, static_cast<std::int64_t>(j));
      ASSERT_EQ(values[j], core::bf16_to_float(core::float_to_bf16(expected)));
    }
  }
}

/// Factors of blocks, each exact with any value of f8_e4m3.
float factor_of(std::int64_t row, std::int64_t column) {
  return static_cast<float>(1 + row / 3 * 5 + column / 4) * 0.25F;
}

float stored_value(std::int64_t element) {
  return core::f8_e4m3_to_float(static_cast<std::uint8_t>(element * 7 % 0x78));
}

/// Adds tensors to a safetensors file.
class SafetensorsFile {
 public:
  void add(const std::string& name, DType dtype, core::Shape shape, const std::vector<float>& values) {
    const auto begin = bytes_.size();
    bytes_.resize(begin + values.size() * core::size_of(dtype));
    core::convert_elements(DType::f32, std::as_bytes(std::span(values)).data(), dtype, bytes_.data() + begin,
                           values.size());
    entries_.push_back({name, dtype, std::move(shape), begin, bytes_.size()});
  }
  void write(const std::string& path) {
    const auto header = core::safetensors_header(entries_, {{"format", "pt"}});
    std::ofstream file(path, std::ios::binary);
    file << header;
    file.write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
  }

 private:
  std::vector<core::SafetensorsEntry> entries_;
  std::vector<std::byte> bytes_;
};

/// What `write()` wrote, with every `_proj` in fp8 and in blocks of 3 by 4; `left_out` is not written.
void write_in_fp8(const std::string& directory, const std::string& left_out = "") {
  SafetensorsFile file;
  for (const auto& spec : parameters(small_model())) {
    core::Shape shape(spec.shape.begin(), spec.shape.end());
    const bool is_scaled = spec.name.ends_with("_proj.weight");
    std::vector<float> values, factors;
    for (std::int64_t i = 0; i < core::elements_of(shape); ++i) values.push_back(stored_value(i));
    file.add(spec.name, is_scaled ? DType::f8_e4m3 : DType::f32, shape, values);
    if (!is_scaled || spec.name + "_scale_inv" == left_out) continue;
    for (std::int64_t row = 0; row < shape[0]; row += 3)
      for (std::int64_t column = 0; column < shape[1]; column += 4) factors.push_back(factor_of(row, column));
    file.add(spec.name + "_scale_inv", DType::f32, {(shape[0] + 2) / 3, (shape[1] + 3) / 4}, factors);
  }
  file.write(directory + "/model.safetensors");
}

TEST_F(PretrainedModelTest, ReadsFp8MatricesAsValuesTimesFactors) {
  write();
  write_in_fp8(directory());
  change_config("quantization_config",
                {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {3, 4}}});

  const auto model = PretrainedModel::open(directory(), 0);

  ASSERT_TRUE(model) << model.error().message;
  EXPECT_THAT((*model)->notes(), testing::ElementsAre(HasSubstr("14 matrices are fp8")));
  for (const auto& spec : parameters((*model)->config())) {
    const auto elements = static_cast<std::int64_t>(spec.elements());
    const core::ElementRange range{elements / 3, elements / 2 + 2};
    std::vector<float> values(static_cast<std::size_t>(range.size()));
    ASSERT_TRUE((*model)->read(spec, range, values));
    const auto columns = static_cast<std::int64_t>(spec.shape.back());
    for (std::int64_t i = range.start; i < range.end; ++i) {
      const float factor = spec.name.ends_with("_proj.weight") ? factor_of(i / columns, i % columns) : 1;
      ASSERT_EQ(values[static_cast<std::size_t>(i - range.start)], stored_value(i) * factor) << spec.name;
    }
  }
  // What is exported has neither blocks nor factors.
  ASSERT_TRUE(export_model((*model)->config(), read_value,
                           {.directory = directory("again"), .origin = model->get()}));
  EXPECT_TRUE(PretrainedModel::open(directory("again"), 0).value()->notes().empty());
}

TEST_F(PretrainedModelTest, InFp8IsRefusedWithoutAllFactors) {
  const std::string factors = "model.layers.1.mlp.up_proj.weight_scale_inv";
  write();
  write_in_fp8(directory(), factors);
  EXPECT_THAT(error(), HasSubstr("has no place"));  // without the configuration of blocks
  change_config("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {3, 4}}});

  EXPECT_THAT(error(), HasSubstr("no file has its factors '" + factors + "'"));
}

TEST_F(PretrainedModelTest, TakesTheAskedContextUpToTheModels) {
  write();

  EXPECT_EQ(PretrainedModel::open(directory(), 0).value()->config().context, 16U);
  EXPECT_EQ(PretrainedModel::open(directory(), 7).value()->config().context, 7U);
  EXPECT_THAT(error(17), HasSubstr("the model knows 16 positions, found --context 17"));
  change_config("max_position_embeddings", 100'000);
  EXPECT_EQ(PretrainedModel::open(directory(), 0).value()->config().context, kDefaultContext);
}

TEST_F(PretrainedModelTest, NamesMissingSuperfluousAndMisshapenTensors) {
  write();
  change_config("num_hidden_layers", 3);
  EXPECT_THAT(error(), HasSubstr("no file has the tensor 'model.layers.2.input_layernorm.weight'"));
  change_config("num_hidden_layers", 1);
  EXPECT_THAT(error(), HasSubstr("tensor 'model.layers.1."));
  change_config("num_hidden_layers", 2);
  change_config("intermediate_size", 30);
  EXPECT_THAT(error(), HasSubstr("tensor 'model.layers.0.mlp.gate_proj.weight' has the shape"));
}

TEST_F(PretrainedModelTest, OfATiedHeadPassesOverTheCopy) {
  write({}, true);

  change_config("tie_word_embeddings", true);

  EXPECT_EQ(error(), "opened");
}

TEST_F(PretrainedModelTest, RefusesAnUncopiedTiedHeadUnlessItIsWanted) {
  write();
  change_config("tie_word_embeddings", true);

  EXPECT_THAT(error(), HasSubstr("'lm_head.weight' is stored and differs from 'model.embed_tokens.weight'"));

  const auto model = PretrainedModel::open(directory(), 0, {{{"tie_word_embeddings", "false"}}, {}});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_FALSE((*model)->config().tied_embeddings);
  ASSERT_TRUE(export_model((*model)->config(), read_value,
                           {.directory = directory("again"), .origin = model->get()}));
  EXPECT_FALSE(
      nlohmann::json::parse(std::ifstream(directory("again") + "/config.json"))["tie_word_embeddings"]);
  EXPECT_TRUE(PretrainedModel::open(directory("again"), 0));
}

TEST_F(PretrainedModelTest, WithoutAHeadHearsThatItMayBeTied) {
  write({}, false, true);

  EXPECT_THAT(error(), AllOf(HasSubstr("no file has the tensor 'lm_head.weight'"),
                             HasSubstr("--key tie_word_embeddings=true")));
  EXPECT_TRUE(PretrainedModel::open(directory(), 0, {{{"tie_word_embeddings", "true"}}, {}}));
}

TEST_F(PretrainedModelTest, HasAContextThatItsWindowDoesNotReach) {
  write();
  change_config("max_position_embeddings", 128);
  change_config("sliding_window", 64);
  change_config("use_sliding_window", true);
  change_config("max_window_layers", 1);

  EXPECT_EQ(error(64), "opened");
  EXPECT_THAT(error(65), AllOf(HasSubstr("key 'sliding_window' changes the maths beyond 64 positions"),
                               HasSubstr("found --context 65; use 64 or less")));
  const auto model = PretrainedModel::open(directory(), 0).value();
  EXPECT_EQ(model->config().context, 64U);
  EXPECT_THAT(model->notes(), testing::ElementsAre(HasSubstr("sliding_window")));
  change_config("use_sliding_window", false);
  EXPECT_EQ(error(128), "opened");
}

TEST_F(PretrainedModelTest, TakesAnUnknownKeyWhenItIsIgnored) {
  write();
  change_config("mystery", 3);

  EXPECT_THAT(error(), AllOf(HasSubstr("key 'mystery' is unknown"), HasSubstr("--ignore mystery")));
  EXPECT_TRUE(PretrainedModel::open(directory(), 0, {{}, {"mystery"}}));
}

TEST_F(PretrainedModelTest, ThatIsCutOrMissingIsNamed) {
  write({.max_file_bytes = 5000});
  const auto part = directory() + "/model-00002-of-0000";
  std::string victim;
  for (const auto& entry : std::filesystem::directory_iterator(directory()))
    if (entry.path().string().starts_with(part)) victim = entry.path().string();
  std::filesystem::resize_file(victim, std::filesystem::file_size(victim) - 1);
  EXPECT_THAT(error(), HasSubstr("model-00002-of-0000"));
  std::filesystem::remove(victim);
  EXPECT_THAT(error(), HasSubstr("to a file that is missing"));
  EXPECT_THAT(PretrainedModel::open(folder_.path(), 0).error().message, HasSubstr("has no *.safetensors"));
}

// Covers save-31.
TEST_F(PretrainedModelTest, IsExportedAgainWithItsOwnConfigurationAndTokenizer) {
  write();
  change_config("bos_token_id", 5);
  std::ofstream(directory() + "/tokenizer.json") << "{\"made\": \"up\"}";
  const auto origin = PretrainedModel::open(directory(), 7).value();

  const auto again =
      export_model(origin->config(), read_value,
                   {.directory = directory("again"), .dtype = DType::bf16, .origin = origin.get()});

  ASSERT_TRUE(again) << again.error().message;
  const auto json = nlohmann::json::parse(std::ifstream(directory("again") + "/config.json"));
  EXPECT_EQ(json["bos_token_id"], 5);
  EXPECT_EQ(json["max_position_embeddings"], 16);
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  std::string tokenizer;
  std::getline(std::ifstream(directory("again") + "/tokenizer.json"), tokenizer);
  EXPECT_EQ(tokenizer, "{\"made\": \"up\"}");
  EXPECT_EQ(PretrainedModel::open(directory("again"), 0).value()->config().context, 16U);
}

TEST_F(PretrainedModelTest, IsReadFromASnapshotOfTheCache) {
  write();
  std::ofstream(directory() + "/tokenizer.json") << "{}";
  std::filesystem::rename(directory(), directory("blobs"));
  std::filesystem::create_directories(directory("snapshots/12ab"));
  for (const auto& entry : std::filesystem::directory_iterator(directory("blobs"))) {
    const auto name = entry.path().filename().string();
    std::filesystem::create_symlink("../../blobs/" + name, directory("snapshots/12ab/" + name));
  }

  const auto model = PretrainedModel::open(directory("snapshots/12ab"), 0);

  ASSERT_TRUE(model) << model.error().message;
  const auto spec = parameters((*model)->config()).front();
  std::vector<float> values(spec.elements());
  ASSERT_TRUE((*model)->read(spec, values));
  EXPECT_EQ(values.back(), value_of(0, static_cast<std::int64_t>(values.size()) - 1));
  ASSERT_TRUE(
      export_model((*model)->config(), read_value, {.directory = directory("out"), .origin = model->get()}));
  EXPECT_TRUE(std::filesystem::is_regular_file(directory("out/tokenizer.json")));
}

TEST_F(PretrainedModelTest, DoesNotReplaceWhatIsThere) {
  write();

  const auto again = export_model(small_model(), read_value, {.directory = directory()});

  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::already_exists);
}

}  // namespace
}  // namespace troupe::apps::gpt
