#include "apps/files/model_directory.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>

#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4976698672\n";

/// Each tensor has two elements, both of them this number.
using Tensors = std::map<std::string, float>;

class ModelDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(path());
    write("config.json", "{}");
  }

  std::string path(const std::string& name = "") const { return folder_.path("model/" + name); }
  void write(const std::string& name, const std::string& text) const { write_file(path(name), text); }

  void save(const std::string& name, const Tensors& tensors) const {
    std::vector<core::SafetensorsEntry> entries;
    std::string data;
    for (const auto& [key, value] : tensors) {
      entries.push_back({key, core::DType::f32, {2}, 0, 0});
      for (int i = 0; i < 2; ++i) data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    write(name, core::safetensors_header(entries, {{"format", "pt"}}) + data);
  }

  void index(const std::map<std::string, std::string>& weights,
             const std::string& name = "model.safetensors.index.json") const {
    write(name, nlohmann::json{{"metadata", nlohmann::json::object()}, {"weight_map", weights}}.dump());
  }

  /// Two shards and their index, whose tensors "a" and "b" are `value`.
  void save_shards(float value) const {
    save("model-00001-of-00002.safetensors", {{"a", value}});
    save("model-00002-of-00002.safetensors", {{"b", value}});
    index({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  }

  core::Result<ModelDirectory> open(const std::map<std::string, std::string>& keys = {}) const {
    return open_model_directory(path(), keys);
  }
  std::string refusal() const {
    const auto model = open();
    return model ? "opened" : model.error().message;
  }
  /// Its tensors and their first elements.
  Tensors values() const {
    Tensors values;
    const auto model = open();
    EXPECT_TRUE(model) << model.error().message;
    for (const auto& tensor : model->source.manifest.tensors) {
      EXPECT_TRUE(stream_box(model->source, tensor, core::DType::f32, core::Box::whole(tensor.shape), 1024,
                             [&](std::span<const std::byte> bytes) {
                               std::memcpy(&values[tensor.key], bytes.data(), sizeof(float));
                               return core::Result<void>{};
                             }));
    }
    return values;
  }
  std::vector<std::string> notes() const { return open().value().notes; }

  ScratchFolder folder_;
};

TEST_F(ModelDirectoryTest, IsTheOneFileBesideAStaleIndex) {
  save_shards(1);
  save("model.safetensors", {{"a", 2}, {"b", 2}});

  EXPECT_EQ(values(), (Tensors{{"a", 2}, {"b", 2}}));
  EXPECT_THAT(notes(), ElementsAre(AllOf(HasSubstr("the model is model.safetensors"),
                                         HasSubstr("model-00001-of-00002.safetensors"),
                                         HasSubstr("model.safetensors.index.json"))));
}

TEST_F(ModelDirectoryTest, IsAllThatTheIndexNames) {
  save_shards(1);
  save("model-00001-of-00002.safetensors", {{"a", 1}, {"not_in_the_index", 3}});

  EXPECT_EQ(values(), (Tensors{{"a", 1}, {"b", 1}, {"not_in_the_index", 3}}));
  EXPECT_THAT(notes(), IsEmpty());
}

TEST_F(ModelDirectoryTest, NamesWhatElseLiesThere) {
  save_shards(1);
  for (const char* name :
       {"pytorch_model.bin", "consolidated.00.pth", "model-q4.gguf", "adapter_model.safetensors",
        "model-00001-of-00003.safetensors", "adapter_config.json", "optimizer.pt", "training_args.bin",
        "README.md", "tokenizer.json"})
    write(name, "anything");
  std::filesystem::create_directories(path("original"));
  write("original/consolidated.00.pth", "anything");
  std::filesystem::create_directories(path("runs"));
  write("runs/events", "anything");

  const auto found = notes();

  ASSERT_EQ(found.size(), 2U);
  EXPECT_THAT(found[0],
              AllOf(HasSubstr("what model.safetensors.index.json names"), HasSubstr("consolidated.00.pth"),
                    HasSubstr("adapter_model.safetensors"), HasSubstr("model-00001-of-00003"),
                    HasSubstr("original/"), HasSubstr("pytorch_model.bin"), HasSubstr("model-q4.gguf")));
  EXPECT_THAT(found[0],
              AllOf(Not(HasSubstr("runs/")), Not(HasSubstr("optimizer")), Not(HasSubstr("training_args"))));
  EXPECT_THAT(found[1], HasSubstr("adapter_config.json"));
}

TEST_F(ModelDirectoryTest, IsTheFileThatTheConfigurationNames) {
  save("model.safetensors", {{"a", 1}});
  save("other.safetensors", {{"a", 2}});
  write("config.json", R"({"transformers_weights": "other.safetensors"})");
  EXPECT_EQ(values(), (Tensors{{"a", 2}}));

  save_shards(3);
  index({{"b", "model-00002-of-00002.safetensors"}}, "some.safetensors.index.json");
  write("config.json", R"({"transformers_weights": "some.safetensors.index.json"})");
  EXPECT_EQ(values(), (Tensors{{"b", 3}}));

  write("config.json", R"({"transformers_weights": "../model/model.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("transformers_weights"));
}

TEST_F(ModelDirectoryTest, WithATensorInTwoFilesIsRefused) {
  save_shards(1);
  save("model-00002-of-00002.safetensors", {{"a", 2}, {"b", 1}});

  EXPECT_THAT(refusal(), AllOf(HasSubstr("tensor 'a' is in model-00001-of-00002.safetensors"),
                               HasSubstr("again in model-00002-of-00002.safetensors")));
}

TEST_F(ModelDirectoryTest, WhoseIndexNamesAMissingFileIsRefused) {
  save_shards(1);
  std::filesystem::remove(path("model-00002-of-00002.safetensors"));

  EXPECT_THAT(refusal(), AllOf(HasSubstr("1 tensors to a file that is missing"), HasSubstr("model-00002")));
}

TEST_F(ModelDirectoryTest, IndexMayNameATiedHeadWithoutAFile) {
  save_shards(1);
  index({{"a", "model-00001-of-00002.safetensors"},
         {"b", "model-00002-of-00002.safetensors"},
         {"lm_head.weight", "model-00002-of-00002.safetensors"}});

  EXPECT_EQ(values(), (Tensors{{"a", 1}, {"b", 1}}));
}

TEST_F(ModelDirectoryTest, WithoutAnIndexIsAllPartsOrNone) {
  save_shards(1);
  std::filesystem::remove(path("model.safetensors.index.json"));
  EXPECT_EQ(values(), (Tensors{{"a", 1}, {"b", 1}}));

  std::filesystem::remove(path("model-00001-of-00002.safetensors"));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("expected model.safetensors or model.safetensors.index.json"),
                               HasSubstr("found model-00002-of-00002.safetensors")));
}

TEST_F(ModelDirectoryTest, WithoutAModelSaysWhatIsThereInstead) {
  EXPECT_THAT(refusal(), HasSubstr("has no *.safetensors; give a directory of Hugging Face"));
  write("pytorch_model.bin", "anything");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("found pytorch_model.bin"), HasSubstr("save_pretrained")));
  save("adapter_model.safetensors", {{"a", 1}});
  write("adapter_config.json", "{}");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("adapter"), HasSubstr("merge_and_unload")));
  std::filesystem::remove(path("config.json"));
  std::filesystem::create_directories(path("checkpoint-500"));
  write("checkpoint-500/config.json", "{}");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("has no config.json"), HasSubstr("checkpoint-500/")));
  EXPECT_THAT(open_model_directory(path("nowhere"), {}).error().message, HasSubstr("nowhere"));
  EXPECT_THAT(open_model_directory(path("pytorch_model.bin"), {}).error().message,
              HasSubstr("pytorch_model.bin"));
}

TEST_F(ModelDirectoryTest, OfPointersOfGitLfsIsCalledThat) {
  const auto says = [](const std::string& name) {
    return HasSubstr(name + " is a pointer of Git LFS, not the file itself, which has 4976698672 bytes");
  };
  save_shards(1);
  write("model-00002-of-00002.safetensors", kPointer);
  EXPECT_THAT(refusal(), says("model-00002-of-00002.safetensors"));
  write("model.safetensors.index.json", kPointer);
  EXPECT_THAT(refusal(), says("model.safetensors.index.json"));
  write("model.safetensors", kPointer);
  EXPECT_THAT(refusal(), says("model.safetensors"));
  const Output show = run_checkpoint({"show", path()});
  EXPECT_THAT(show.err, says("model.safetensors"));
  EXPECT_NE(show.exit_code, 0);
  save("model.safetensors", {{"a", 1}});
  write("config.json", kPointer);
  EXPECT_THAT(refusal(), says("config.json"));
}

TEST_F(ModelDirectoryTest, HasItsKeysReplaced) {
  save("model.safetensors", {{"a", 1}});
  write("config.json", R"({"x": 1, "y": 2})");

  EXPECT_EQ(nlohmann::json::parse(open({{"x", "null"}, {"y", "word"}}).value().config),
            (nlohmann::json{{"x", nullptr}, {"y", "word"}}));
  EXPECT_EQ(open().value().config, R"({"x": 1, "y": 2})");
}

TEST_F(ModelDirectoryTest, MayHaveAHeadThatIsTheEmbedding) {
  save("model.safetensors", {{"a", 1}, {"same", 1}, {"other", 2}});
  const auto model = open();

  EXPECT_TRUE(check_tied_head(model->source, "same", "a"));
  EXPECT_TRUE(check_tied_head(model->source, "none", "a"));
  EXPECT_THAT(check_tied_head(model->source, "other", "a").error().message,
              AllOf(HasSubstr("'other' is stored and differs from 'a'"),
                    HasSubstr("--key tie_word_embeddings=false")));
}

// The tool for checkpoints reads the same files.
TEST_F(ModelDirectoryTest, IsTheSameForTheToolForCheckpoints) {
  save_shards(1);
  save("model.safetensors", {{"a", 2}, {"b", 2}});

  const Output run = run_checkpoint({"import", path(), folder_.path("out")});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("model-00001-of-00002.safetensors"));
  const float two[] = {2, 2};
  EXPECT_EQ(contents_of(folder_.path("out/step_00000000")).at("a"),
            std::string(reinterpret_cast<const char*>(two), sizeof two));
}

}  // namespace
}  // namespace troupe::apps
