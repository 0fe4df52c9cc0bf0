#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "core/checkpoint/safetensors.hpp"
#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using core::DType;
using core::Value;
using Json = nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// A safetensors file, whose header is given as JSON.
std::string safetensors_file(const std::string& header, const std::string& data) {
  std::string bytes;
  for (std::size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

class ImportOfPyTorch : public testing::TestWithParam<const char*> {};

// Covers ranks-20.
TEST_P(ImportOfPyTorch, HasTheTensorsThatPyTorchSaved) {
  ScratchFolder directory;
  const auto from = golden(std::string("interop/") + GetParam());
  const auto expected = Json::parse(read_file(from + "/expected.json"))["tensors"];

  const Output run = run_checkpoint({"import", from, directory.path("out"), "--step", "12", "--mesh", "3"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto contents = contents_of(directory.path("out/step_00000012"));
  const auto manifest = manifest_at(directory.path("out/step_00000012"));
  EXPECT_EQ(contents.size(), expected.size());
  for (const auto& [key, tensor] : expected.items()) {
    ASSERT_TRUE(contents.contains(key)) << key;
    EXPECT_EQ(hex(contents.at(key)), tensor["bytes"]) << key;
    ASSERT_NE(manifest.find(key), nullptr) << key;
    EXPECT_EQ(manifest.find(key)->shape, tensor["shape"].get<core::Shape>()) << key;
  }
  EXPECT_EQ(run_checkpoint({"verify", directory.path("out")}).exit_code, 0);
  EXPECT_EQ(run_checkpoint({"diff", from, directory.path("out")}).exit_code, 0);
}

TEST(ImportedStep, LeavesRoomToCountFurther) {
  ScratchFolder directory;

  const Output run = run_checkpoint(
      {"import", golden("interop/plain"), directory.path("out"), "--step", "9223372036854775807"});

  EXPECT_EQ(run.exit_code, kUsageError);
  EXPECT_FALSE(std::filesystem::exists(directory.path("out")));
}

INSTANTIATE_TEST_SUITE_P(Golden, ImportOfPyTorch,
                         testing::Values("plain", "mesh", "fsdp", "rank_files", "rank_files_hsdp",
                                         "rank_files_tensor_parallel"));

TEST(CheckpointImport, KeepsNestedValuesAsSessionsExpectThem) {
  ScratchFolder directory;

  run_checkpoint({"import", golden("interop/plain"), directory.path("out"), "--step", "4"});

  const auto common = manifest_at(directory.path("out/step_00000004")).common;
  EXPECT_EQ(*common.find("step"), Value(4));
  EXPECT_EQ(*common.find("optimizer_steps"), Value(4));
  EXPECT_EQ(*common.find("trainer.large"), Value(std::int64_t{1} << 40));
  EXPECT_EQ(*common.find("trainer.nested.1.betas"), Value(Value::List{0.9, 0.999}));
  EXPECT_EQ(*common.find("trainer.nested.1.none"), Value(nullptr));
}

TEST(CheckpointImport, NamesAreReplacedByPrefix) {
  ScratchFolder directory;

  const Output run = run_checkpoint({"import", golden("interop/fsdp"), directory.path("out"), "--rename",
                                     "model.=", "--rename", "optimizer.state.=moments."});
  const Output twice = run_checkpoint({"import", golden("interop/fsdp"), directory.path("twice"), "--rename",
                                       "model.weight=x", "--rename", "model.bias=x"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto contents = contents_of(directory.path("out/step_00000000"));
  EXPECT_TRUE(contents.contains("weight"));
  EXPECT_TRUE(contents.contains("moments.bias.exp_avg"));
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr("two tensors would be called 'x'"));
}

TEST(CheckpointImport, DamagedElementsOfAnArchiveAreFound) {
  ScratchFolder directory;
  std::filesystem::copy(golden("interop/mesh"), directory.path("mesh"));
  const auto file = directory.path("mesh/__0_0.distcp");
  // The first row of [0:2, 0:3] of 'rows_and_columns', which counts from 0.
  const auto at = read_file(file).find(floats({0, 1, 2}));
  ASSERT_NE(at, std::string::npos);
  flip_bit(file, at + 5);

  const Output run = run_checkpoint({"import", directory.path("mesh"), directory.path("out")});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("__0_0.distcp, [0:2, 0:3] of 'rows_and_columns'"));
  EXPECT_FALSE(std::filesystem::exists(directory.path("out")));
}

TEST(CheckpointImport, ReadsASingleSafetensorsFileOfAnotherWriter) {
  ScratchFolder directory;

  const Output run =
      run_checkpoint({"import", golden("checkpoint/foreign.safetensors"), directory.path("out")});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto contents = contents_of(directory.path("out/step_00000000"));
  EXPECT_EQ(contents.at("matrix"), floats({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(contents.at("flag"), std::string("\1\0", 2));
  EXPECT_EQ(contents.at("empty"), "");
}

class ImportOfModels : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(model_);
    write_file(model_ + "/one.safetensors",
               safetensors_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                R"("extra":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                                "abx"));
    write_file(model_ + "/two.safetensors",
               safetensors_file(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "123"));
    index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  }
  void index(const std::string& weights) {
    write_file(model_ + "/model.safetensors.index.json", "{\"weight_map\": " + weights + "}");
  }

  ScratchFolder directory_;
  std::string model_ = directory_.path("model");
};

TEST_F(ImportOfModels, TheIndexSaysWhatIsWhere) {
  const Output run = run_checkpoint({"import", model_, directory_.path("out")});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("left out 'extra': one.safetensors has it, the index does not"));
  EXPECT_EQ(contents_of(directory_.path("out/step_00000000")),
            (std::map<std::string, std::string>{{"a", "ab"}, {"b", "123"}}));
}

TEST_F(ImportOfModels, AnIndexThatIsWrongIsRefused) {
  index(R"({"a": "one.safetensors", "b": "one.safetensors"})");
  const Output elsewhere = run_checkpoint({"import", model_, directory_.path("out")});
  index(R"({"a": "one.safetensors", "b": "three.safetensors"})");
  const Output missing = run_checkpoint({"import", model_, directory_.path("out")});
  index(R"({"a": "../one.safetensors"})");
  const Output outside = run_checkpoint({"import", model_, directory_.path("out")});

  EXPECT_THAT(elsewhere.err, HasSubstr("the index says that 'b' is in one.safetensors"));
  EXPECT_THAT(missing.err, HasSubstr("the index gives 1 tensors to a file that is missing"));
  EXPECT_EQ(elsewhere.exit_code, 1);
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_EQ(outside.exit_code, 1);
}

TEST_F(ImportOfModels, WithoutAnIndexFilesMayHoldParts) {
  std::filesystem::remove(model_ + "/model.safetensors.index.json");
  const auto part = [](int offset) {
    return safetensors_file(
        fmt::format(R"({{"__metadata__":{{"DCP_SHARDING_INFO":"{{\"b\":{{\"saved_offsets\":[{}]}}}}"}},)"
                    R"("b":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}}})",
                    offset),
        offset == 0 ? "123" : "456");
  };
  write_file(model_ + "/two.safetensors", part(3));
  write_file(model_ + "/three.safetensors", part(0));
  const Output whole = run_checkpoint({"import", model_, directory_.path("out")});
  write_file(model_ + "/three.safetensors", part(4));
  const Output hole = run_checkpoint({"import", model_, directory_.path("other")});

  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(contents_of(directory_.path("out/step_00000000")).at("b"), "123456");
  EXPECT_EQ(hole.exit_code, 1);
  EXPECT_THAT(hole.err, HasSubstr("tensor 'b': Invalid access pattern"));
}

// Covers unit-15.
TEST(CheckpointExport, ForDcpAndBackNothingIsLost) {
  ScratchFolder directory;

  const Output there = run_checkpoint({"export", golden_checkpoint(), directory.path("dcp"), "--to", "dcp"});
  const Output back = run_checkpoint({"import", directory.path("dcp"), directory.path("back")});

  ASSERT_EQ(there.exit_code, 0) << there.err;
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(names_in(directory.path("dcp")),
              ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"));
  EXPECT_EQ(contents_of(directory.path("back/step_00000007")), contents_of(golden_checkpoint()));
  EXPECT_EQ(run_checkpoint({"diff", golden_checkpoint(), directory.path("back")}).exit_code, 0);
  const auto manifest = manifest_at(directory.path("back/step_00000007"));
  EXPECT_EQ(manifest.common, manifest_at(golden_checkpoint()).common);
  EXPECT_EQ(manifest.objects, manifest_at(golden_checkpoint()).objects);
}

TEST(CheckpointExport, ShardedSafetensorsKeepTheTensors) {
  ScratchFolder directory;

  const Output run = run_checkpoint(
      {"export", golden_checkpoint(), directory.path("files"), "--to", "dcp", "--form", "safetensors"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("have no place in these files"));
  EXPECT_THAT(names_in(directory.path("files")), Contains("shard-00001-model-00001-of-00001.safetensors"));
  EXPECT_EQ(run_checkpoint({"diff", golden_checkpoint(), directory.path("files")}).exit_code, 0);
}

TEST(CheckpointExport, WritesOnlyWeightsForHuggingFaceInLimitedFiles) {
  ScratchFolder directory;
  const auto from = make_checkpoint(directory.path("in"), 3,
                                    {{"a", DType::f32, {2}, floats({1, 2})},
                                     {"b", DType::f32, {3}, floats({3, 4, 5})},
                                     {"optimizer.state.exp_avg.a", DType::f32, {2}, floats({8, 9})}});

  const Output run = run_checkpoint({"export", from, directory.path("model"), "--to", "huggingface",
                                     "--rename", "=model.", "--max-shard-bytes", "16"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(names_in(directory.path("model")),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  const auto index = Json::parse(read_file(directory.path("model/model.safetensors.index.json")));
  EXPECT_EQ(index["metadata"]["total_size"], 20);
  EXPECT_EQ(index["weight_map"], Json::parse(R"({"model.a": "model-00001-of-00002.safetensors",)"
                                             R"( "model.b": "model-00002-of-00002.safetensors"})"));
  const auto second = read_file(directory.path("model/model-00002-of-00002.safetensors"));
  EXPECT_EQ(second.substr(second.size() - 12), floats({3, 4, 5}));
  EXPECT_EQ(run_checkpoint({"diff", from, directory.path("model"), "--weights-only", "--rename", "model.="})
                .exit_code,
            0);
}

TEST(CheckpointExport, MayIncludeTheOptimizerAndConvertFloats) {
  ScratchFolder directory;
  const auto from = make_checkpoint(directory.path("in"), 3,
                                    {{"a", DType::f32, {2}, floats({1, 0.5F})},
                                     {"n", DType::u8, {1}, "n"},
                                     {"optimizer.state.exp_avg.a", DType::f32, {2}, floats({8, 9})}});

  const Output run = run_checkpoint({"export", from, directory.path("model"), "--to", "huggingface",
                                     "--with-optimizer", "--dtype", "bf16"});

  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = Json::parse(run_checkpoint({"show", directory.path("model"), "--json"}).out);
  EXPECT_EQ(json["tensors"][0]["dtype"], "bf16");
  EXPECT_EQ(json["tensors"][1]["dtype"], "u8");
  EXPECT_EQ(json["tensors"][2]["key"], "optimizer.state.exp_avg.a");
  const auto file = read_file(directory.path("model/model-00001-of-00001.safetensors"));
  EXPECT_THAT(file, HasSubstr(std::string("\x80\x3f\x00\x3f", 4)));
}

TEST(CheckpointExport, WhatIsThereStaysAndNothingIsLeftBeside) {
  ScratchFolder directory;
  std::filesystem::create_directory(directory.path("out"));
  const auto damaged = directory.path("step_00000007");
  std::filesystem::copy(golden_checkpoint(), damaged);
  flip_bit(damaged + "/shard_00001_0.safetensors", 520);

  const Output there = run_checkpoint({"export", golden_checkpoint(), directory.path("out"), "--to", "dcp"});
  const Output bad = run_checkpoint({"export", damaged, directory.path("new"), "--to", "huggingface"});

  EXPECT_EQ(there.exit_code, 2);
  EXPECT_THAT(there.err, HasSubstr("is already there and stays as it is"));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(names_in(directory.path("")), ElementsAre("out", "step_00000007"));
}

TEST(CheckpointExport, WrongUseIsRefused) {
  const auto from = golden_checkpoint();

  EXPECT_EQ(run_checkpoint({"export", from, "nowhere"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"export", from, "nowhere", "--to", "keras"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"export", from, "nowhere", "--to", "dcp", "--dtype", "bf16"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"export", from, "nowhere", "--to", "huggingface", "--dtype", "i8"}).exit_code, 2);
  EXPECT_EQ(run_checkpoint({"export", from, "nowhere", "--to", "huggingface", "--rename", "x"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists("nowhere"));
}

using Commands = std::vector<std::vector<std::string>>;

/// Every file cut short and every byte altered, one after the other: no crash, no hang, and no exit code but
/// those that the commands have.
void torture(const std::string& path, std::size_t stride,
             const std::function<Commands(const ScratchFolder&)>& commands) {
  for (const auto& name : names_in(path)) {
    const auto file = path + "/" + name;
    const auto whole = read_file(file);
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      for (const bool cut : {true, false}) {
        auto bytes = cut ? whole.substr(0, at) : whole;
        if (!cut) bytes[at] = static_cast<char>(bytes[at] ^ 0x81);
        write_file(file, bytes);
        ScratchFolder out;
        for (const auto& arguments : commands(out)) {
          const int code = run_checkpoint(arguments).exit_code;
          EXPECT_TRUE(code >= 0 && code <= 2) << name << " " << at;
        }
      }
    }
    write_file(file, whole);
  }
}

void torture_foreign(const std::string& path, std::size_t stride) {
  torture(path, stride, [&path](const ScratchFolder& out) {
    return Commands{{"show", path, "--json"}, {"import", path, out.path("out")}};
  });
}

TEST(HostileFiles, OfTroupeNeverCrash) {
  ScratchFolder directory;
  const auto path = directory.path("step_00000007");
  std::filesystem::copy(golden_checkpoint(), path);

  torture(path, 29, [&path](const ScratchFolder& out) {
    return Commands{{"show", path, "--tensor", "weight"},
                    {"diff", path, golden_checkpoint()},
                    {"reshard", path, out.path("out"), "--mesh", "2", "--no-verify"},
                    {"export", path, out.path("dcp"), "--to", "dcp", "--no-verify"}};
  });

  EXPECT_EQ(run_checkpoint({"verify", path}).exit_code, 0);
}

TEST(HostileFiles, OfPyTorchNeverCrash) {
  ScratchFolder directory;
  std::filesystem::copy(golden("interop/mesh"), directory.path("mesh"));

  torture_foreign(directory.path("mesh"), 331);

  EXPECT_EQ(run_checkpoint({"show", directory.path("mesh")}).exit_code, 0);
}

TEST(HostileFiles, OfModelsNeverCrash) {
  ScratchFolder directory;
  run_checkpoint({"export", golden_checkpoint(), directory.path("hf"), "--to", "huggingface"});
  run_checkpoint(
      {"export", golden_checkpoint(), directory.path("st"), "--to", "dcp", "--form", "safetensors"});

  torture_foreign(directory.path("hf"), 11);
  torture_foreign(directory.path("st"), 11);

  EXPECT_EQ(run_checkpoint({"show", directory.path("hf")}).exit_code, 0);
}

}  // namespace
}  // namespace troupe::apps
