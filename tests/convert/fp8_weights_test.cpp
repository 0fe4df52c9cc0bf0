#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/hash.hpp"
#include "tests/convert/convert_tool.hpp"
#include "tests/convert/small_model.hpp"

namespace troupe::apps {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr std::int64_t kBlockRows = 3, kBlockColumns = 5;  // neither divides what is cut

/// By the definition of the format: a sign, 4 bits of exponent with bias 7, 3 of mantissa.
float value_of(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(bits & 128 ? -value : value);
}

/// To the nearest bf16, ties to even.
std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// A model with matrices in fp8, and what it is in bf16.
struct QuantizedModel {
  std::string config;
  StoredTensors tensors, plain;
};

void quantize(QuantizedModel& model, const std::string& name, std::uint64_t seed) {
  const auto shape = model.plain[name].shape;
  const auto rows = shape[0], columns = shape[1];
  const core::Shape blocks{(rows + kBlockRows - 1) / kBlockRows,
                           (columns + kBlockColumns - 1) / kBlockColumns};
  std::vector<std::uint8_t> stored;
  std::vector<float> factors;
  std::vector<std::uint16_t> values;
  for (std::int64_t i = 0; i < blocks[0] * blocks[1]; ++i)
    factors.push_back(1.0F + 0.37F * static_cast<float>(core::hash64("factor", seed + i) % 100));
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    auto bits = static_cast<std::uint8_t>(core::hash64("element", seed + i));
    if ((bits & 0x7f) == 0x7f) bits = 0;  // not a number
    stored.push_back(bits);
    const auto block = i / columns / kBlockRows * blocks[1] + i % columns / kBlockColumns;
    values.push_back(bf16_of(value_of(bits) * factors[static_cast<std::size_t>(block)]));
  }
  model.tensors[name] = {core::DType::f8_e4m3, shape, bytes_of(stored)};
  model.tensors[name + "_scale_inv"] = {core::DType::f32, blocks, bytes_of(factors)};
  model.plain[name].bytes = bytes_of(values);
}

QuantizedModel quantized_model() {
  QuantizedModel model;
  const auto config = small_config("DeepSeek-V3");
  model.plain = model.tensors = small_tensors(config);
  auto json = Json::parse(config);
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"fmt", "e4m3"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {kBlockRows, kBlockColumns}}};
  model.config = json.dump();
  std::uint64_t seed = 1;
  for (const auto& [name, tensor] : model.plain) {
    // Published models leave out the embedding, the router and the head.
    if (name.ends_with("_proj.weight")) quantize(model, name, seed += 1'000'000);
  }
  return model;
}

int run(const std::vector<std::string>& words) {
  const auto run = run_convert(words);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.exit_code;
}

TEST(Fp8Weights, BecomeValuesTimesFactorsInBf16) {
  const ScratchFolder directory;
  const auto model = quantized_model();
  ASSERT_NE(model.tensors, model.plain);
  write_model(directory.path("in"), model.config, model.tensors);

  run({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});

  EXPECT_EQ(read_model(directory.path("out")), model.plain);
  EXPECT_FALSE(Json::parse(read_text(directory.path("out/config.json"))).contains("quantization_config"));
}

TEST(Fp8Weights, AreCutForAnyMeshAsBf16Is) {
  const ScratchFolder directory;
  const auto model = quantized_model();
  write_model(directory.path("in"), model.config, model.tensors);
  write_model(directory.path("plain"), small_config("DeepSeek-V3"), model.plain);
  const std::vector<std::string> mesh{"--to", "megatron", "--tp", "2", "--pp", "2", "--ep", "2"};
  const auto convert = [&](const char* from, const char* to) {
    std::vector<std::string> words{"weights", directory.path(from), directory.path(to)};
    words.insert(words.end(), mesh.begin(), mesh.end());
    run(words);
  };

  convert("in", "parts");
  convert("plain", "expected");

  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path("expected"))) {
    const auto name = entry.path().filename().string();
    EXPECT_EQ(read_text(directory.path("parts") + "/" + name), read_text(entry.path().string())) << name;
    files += 1;
  }
  // Files of stages and tensor ranks, of stages, expert ranks and theirs, and the manifest.
  EXPECT_EQ(files, 2 * 2 + 2 * 2 * 2 + 1U);
}

TEST(Fp8Weights, WithoutTheirFactorsAreNamed) {
  const ScratchFolder directory;
  auto model = quantized_model();
  const std::string name = "model.layers.0.self_attn.o_proj.weight_scale_inv";
  auto factors = model.tensors.extract(name);
  ASSERT_FALSE(factors.empty());
  write_model(directory.path("in"), model.config, model.tensors);

  const auto missing =
      run_convert({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});

  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no file has its factors '" + name + "'"));

  factors.mapped().shape = {1, static_cast<std::int64_t>(factors.mapped().bytes.size() / 4)};
  model.tensors.insert(std::move(factors));
  write_model(directory.path("in"), model.config, model.tensors);
  const auto wrong =
      run_convert({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("'" + name + "' is f32 of shape"));
}

TEST(Fp8Weights, OfOtherMethodsAreRefusedByName) {
  const ScratchFolder directory;
  const auto model = quantized_model();
  auto json = Json::parse(model.config);
  json["quantization_config"]["quant_method"] = "awq";
  write_model(directory.path("in"), json.dump(), model.tensors);

  const auto refused =
      run_convert({"weights", directory.path("in"), directory.path("out"), "--to", "huggingface"});

  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("quant_method: expected \"fp8\", found \"awq\""));
}

}  // namespace
}  // namespace troupe::apps
