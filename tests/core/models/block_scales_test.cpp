#include "core/models/block_scales.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BlockScales, AreFoundInAConfigAndNowhereElse) {
  const auto published = scaled_blocks(R"({"quantization_config": {"activation_scheme": "dynamic",
      "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 64]}})");

  ASSERT_TRUE(published) << published.error().message;
  EXPECT_EQ(*published, (ScaledBlocks{128, 64}));
  for (const char* none : {"{}", R"({"quantization_config": null})", R"({"quantization_config": {}})",
                           R"({"quantization_config": false})"}) {
    const auto found = scaled_blocks(none);
    ASSERT_TRUE(found) << none;
    EXPECT_EQ(*found, std::nullopt) << none;
  }
}

TEST(BlockScales, OfAnotherKindAreRefusedByKey) {
  const auto error = [](const std::string& object) {
    const auto found = scaled_blocks(R"({"quantization_config": )" + object + "}");
    return found ? "none" : found.error().message;
  };
  EXPECT_THAT(error(R"({"quant_method": "gptq"})"), HasSubstr("quant_method: expected \"fp8\""));
  EXPECT_THAT(error(R"({"weight_block_size": [1, 1]})"), HasSubstr("quant_method"));
  EXPECT_THAT(error(R"({"quant_method": "fp8"})"), HasSubstr("weight_block_size"));
  EXPECT_THAT(error(R"({"quant_method": "fp8", "fmt": "e5m2"})"), HasSubstr("fmt"));
  for (const char* size : {"[0, 128]", "[128]", "[128, 2000000]", "[1.5, 2]", "128", "[-1, 1]"}) {
    EXPECT_THAT(error(std::string(R"({"quant_method": "fp8", "weight_block_size": )") + size + "}"),
                HasSubstr("weight_block_size: expected rows and columns of a block"))
        << size;
  }
  EXPECT_THAT(error(R"({"quant_method": "fp8", "weight_block_size": [1, 1], "bits": 8})"), HasSubstr("bits"));
  EXPECT_THAT(error("\"fp8\""), HasSubstr("expected an object"));
}

TEST(BlockScales, MultiplyAPartByTheFactorsOfItsBlocks) {
  const ScaledBlocks blocks{2, 3};
  const Shape matrix{5, 7};
  EXPECT_EQ(factors_shape(blocks, matrix), (Shape{3, 3}));
  const std::vector<float> factors{1, 2, 3, 10, 20, 30, 100, 200, 300};
  std::vector<float> values(6, 1);

  multiply_by_factors(blocks, matrix, {{3, 4}, {2, 3}}, factors, values);  // rows 3 and 4, columns 4 to 6

  EXPECT_THAT(values, ElementsAre(20, 20, 30, 200, 200, 300));
}

}  // namespace
}  // namespace troupe::core
