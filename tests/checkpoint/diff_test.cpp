#include "apps/troupe/checkpoint/diff.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/checkpoint/checkpoint_tool.hpp"

namespace troupe::apps {
namespace {

using core::DType;
using core::Value;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointDiff : public testing::Test {
 protected:
  std::string left(const std::vector<MadeTensor>& tensors, const Value& common = {}) {
    return make_checkpoint(directory_.path("a"), 5, tensors, common);
  }
  std::string right(const std::vector<MadeTensor>& tensors, const Value& common = {}) {
    return make_checkpoint(directory_.path("b"), 5, tensors, common);
  }

  ScratchFolder directory_;
};

// Covers model-4.
TEST_F(CheckpointDiff, ACheckpointIsEqualToItself) {
  const Output run = run_checkpoint({"diff", golden_checkpoint(), golden_checkpoint()});

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out,
            "equal: 7 tensors are the same, 0 differ, 0 only in A, 0 only in B; the values are the same\n");
}

// Covers model-4.
TEST_F(CheckpointDiff, TellsWhereAndHowMuchValuesDiffer) {
  const auto a = left({{"w", DType::f32, {2, 3}, floats({1, 2, 3, 4, 5, 6})}});
  const auto b = right({{"w", DType::f32, {2, 3}, floats({1, 2, 3, 4.5F, 5, -6})}});

  const Output run = run_checkpoint({"diff", a, b});

  EXPECT_EQ(run.exit_code, 1);
  // 4 and 4.5 differ in one bit of the fraction, 6 and -6 in the sign.
  EXPECT_THAT(run.out,
              HasSubstr("w\n    2 of 6 elements (2 bits), at most 12 apart; first at (1, 0): 4 / 4.5\n"));
}

TEST_F(CheckpointDiff, ShowsOneSidedAndDifferentlyFormedTensors) {
  const auto a = left({{"form", DType::f32, {2}, floats({1, 2})},
                       {"only a", DType::u8, {1}, "x"},
                       {"type", DType::i32, {1}, "abcd"}});
  const auto b = right({{"form", DType::f32, {1, 2}, floats({1, 2})},
                        {"only b", DType::u8, {1}, "x"},
                        {"type", DType::u32, {1}, "abcd"}});

  const auto json = Json::parse(run_checkpoint({"diff", a, b, "--json"}).out);

  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["only_in_a"], Json::array({"only a"}));
  EXPECT_EQ(json["only_in_b"], Json::array({"only b"}));
  EXPECT_EQ(json["tensors"][0], Json::parse(R"({"key": "form", "dtype": ["f32", "f32"],)"
                                            R"( "shape": [[2], [1, 2]], "values": null})"));
  EXPECT_EQ(json["tensors"][1], Json::parse(R"({"key": "type", "dtype": ["i32", "u32"],)"
                                            R"( "shape": [[1], [1]], "values": null})"));
}

TEST_F(CheckpointDiff, FloatingTensorsOfTwoDtypesAreComparedByValue) {
  // 1 and 0.5 in bfloat16, little-endian.
  const auto a = left({{"w", DType::bf16, {2}, std::string("\x80\x3f\x00\x3f", 4)}});
  const auto b = right({{"w", DType::f32, {2}, floats({1, 0.5F})}});

  const Output run = run_checkpoint({"diff", a, b});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("w\n    dtype bf16 / f32\n    the same values\n"));
}

TEST_F(CheckpointDiff, BitsCountForNaNAndForZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto a =
      left({{"nan", DType::f32, {3}, floats({nan, 1, nan})}, {"zero", DType::f32, {1}, floats({0})}});
  const auto b =
      right({{"nan", DType::f32, {3}, floats({nan, 3, 2})}, {"zero", DType::f32, {1}, floats({-0.0F})}});

  const auto json = Json::parse(run_checkpoint({"diff", a, b, "--json"}).out);

  EXPECT_EQ(json["tensors"][0]["values"]["differing"], 2);
  EXPECT_EQ(json["tensors"][0]["values"]["max_difference"], "nan");
  EXPECT_EQ(json["tensors"][1]["values"]["differing"], 1);
  EXPECT_EQ(json["tensors"][1]["values"]["bits"], 1);
  EXPECT_EQ(json["tensors"][1]["values"]["max_difference"], 0.0);
}

TEST_F(CheckpointDiff, LargeIntegersKeepTheirDistance) {
  std::string small(8, '\0');
  std::string large(8, '\xff');
  const auto a = left({{"i", DType::i64, {1}, small}, {"u", DType::u64, {1}, small}});
  const auto b = right({{"i", DType::i64, {1}, large}, {"u", DType::u64, {1}, large}});

  const auto json = Json::parse(run_checkpoint({"diff", a, b, "--json"}).out);

  EXPECT_EQ(json["tensors"][0]["values"]["max_difference"], 1.0);
  EXPECT_EQ(json["tensors"][1]["values"]["max_difference"], std::ldexp(1.0, 64));
}

TEST_F(CheckpointDiff, CommonValuesAreComparedByPlaceAndType) {
  const MadeTensor tensor{"w", DType::u8, {1}, "x"};
  const auto a = left({tensor}, Value::Map{{"lr", 0.5}, {"list", Value::List{1, 2}}, {"gone", "x"}});
  const auto b = right({tensor}, Value::Map{{"lr", 1}, {"list", Value::List{1, 3}}, {"new", nullptr}});

  const Output run = run_checkpoint({"diff", a, b});

  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("value common.lr: 0.5 / 1\n"), HasSubstr("value common.list.1: 2 / 3\n"),
                    HasSubstr("value common.gone: \"x\" / (nothing)\n"),
                    HasSubstr("value common.new: (nothing) / null\n"), HasSubstr("4 values differ")));
}

TEST_F(CheckpointDiff, ADamagedManifestIsNoDifference) {
  const auto a = left({{"w", DType::u8, {1}, "x"}});
  const auto b = right({{"w", DType::u8, {1}, "x"}});
  flip_bit(b + "/manifest.json", 60);

  const Output run = run_checkpoint({"diff", a, b});

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("troupe checkpoint diff: manifest.json"));
}

TEST_F(CheckpointDiff, PiecesOfAnySizeFindTheSame) {
  std::vector<float> values(35);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  auto others = values;
  others[18] += 2;
  others[33] -= 4;
  const auto a = left({{"w", DType::f32, {5, 7}, floats(values)}});
  const auto b = right({{"w", DType::f32, {5, 7}, floats(others)}});
  const auto sources = std::pair(open_source(a).value(), open_source(b).value());

  for (const std::size_t chunk_bytes : {1, 4, 12, 28, 100, 1000}) {
    const auto difference = diff_checkpoints(sources.first, sources.second, chunk_bytes).value();

    ASSERT_EQ(difference.tensors.size(), 1U) << chunk_bytes;
    const auto& found = *difference.tensors[0].values;
    EXPECT_EQ(found.differing, 2) << chunk_bytes;
    EXPECT_EQ(found.first, (core::Shape{2, 4})) << chunk_bytes;
    EXPECT_EQ(found.max_difference, 4) << chunk_bytes;
  }
}

}  // namespace
}  // namespace troupe::apps
