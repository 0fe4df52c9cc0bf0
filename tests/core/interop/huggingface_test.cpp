#include "core/interop/huggingface.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace troupe::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Files = std::vector<std::vector<std::size_t>>;

// An index as transformers writes it.
constexpr std::string_view kIndex = R"({
  "metadata": {
    "total_size": 28966928384
  },
  "weight_map": {
    "lm_head.weight": "model-00002-of-00002.safetensors",
    "model.embed_tokens.weight": "model-00001-of-00002.safetensors"
  }
}
)";

HuggingFaceIndex index() {
  return {28'966'928'384,
          {{"lm_head.weight", "model-00002-of-00002.safetensors"},
           {"model.embed_tokens.weight", "model-00001-of-00002.safetensors"}}};
}

TEST(HuggingFaceIndex, ReadsAndWritesWhatTransformersWrites) {
  EXPECT_EQ(parse_huggingface_index(kIndex).value(), index());
  EXPECT_EQ(encode_huggingface_index(index()).value(), kIndex);
}

TEST(HuggingFaceIndex, DoesWithoutATotalSize) {
  EXPECT_EQ(parse_huggingface_index(R"({"weight_map": {"a": "b.safetensors"}})").value(),
            (HuggingFaceIndex{0, {{"a", "b.safetensors"}}}));
  EXPECT_EQ(parse_huggingface_index(R"({"metadata": [], "weight_map": {}})").value(), HuggingFaceIndex{});
}

TEST(HuggingFaceIndex, RefusesWhatIsNoIndex) {
  const auto refusal = [](std::string_view text) {
    const auto result = parse_huggingface_index(text);
    EXPECT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result ? Errc::internal : result.error().code, Errc::corrupt);
    return result ? "" : result.error().message;
  };

  EXPECT_THAT(refusal(""), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no object 'weight_map'"));
  EXPECT_THAT(refusal(R"({"weight_map": 3})"), HasSubstr("no object 'weight_map'"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": 3}})"), HasSubstr("the file of tensor 'a' is not text"));
  EXPECT_THAT(refusal(R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})"),
              HasSubstr("unique names"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("at most 16 levels"));
  for (const std::string_view file :
       {"../x.safetensors", "/x.safetensors", "x.bin", ".safetensors", "a/x.safetensors"}) {
    EXPECT_THAT(refusal(R"({"weight_map": {"a": ")" + std::string(file) + R"("}})"),
                HasSubstr("not a *.safetensors"));
  }
}

TEST(HuggingFaceIndex, RefusesToWriteWhatItWouldNotRead) {
  EXPECT_THAT(encode_huggingface_index({0, {{"a", "../x.safetensors"}}}).error().message,
              HasSubstr("not a *.safetensors"));
  EXPECT_THAT(encode_huggingface_index({0, {{"\xff", "x.safetensors"}}}).error().message,
              HasSubstr("not UTF-8"));
}

// torch/distributed/checkpoint/_hf_utils.py, _gen_file_name.
TEST(HuggingFaceFiles, AreNamedAsTransformersAndPyTorchNameThem) {
  EXPECT_EQ(huggingface_file_name(1, 3), "model-00001-of-00003.safetensors");
  EXPECT_EQ(huggingface_file_name(123456, 123456), "model-123456-of-123456.safetensors");
  EXPECT_EQ(huggingface_shard_file_name(0, 1, 2), "shard-00001-model-00001-of-00002.safetensors");
}

TEST(HuggingFaceFiles, AreClosedBeforeTheyGrowTooLarge) {
  const std::vector<std::uint64_t> sizes{4, 6, 1, 25, 3, 7, 0};

  EXPECT_EQ(split_into_files(sizes, 10), (Files{{0, 1}, {2}, {3}, {4, 5, 6}}));
  EXPECT_EQ(split_into_files({}, 10), Files{});
  EXPECT_EQ(split_into_files(sizes, 1000), (Files{{0, 1, 2, 3, 4, 5, 6}}));
}

RC_GTEST_PROP(HuggingFaceFiles, HoldEveryTensorOnceInOrder,
              (std::vector<std::uint32_t> bytes, std::uint16_t limit)) {
  const std::vector<std::uint64_t> sizes(bytes.begin(), bytes.end());

  const Files files = split_into_files(sizes, limit);

  std::vector<std::size_t> order;
  for (const auto& file : files) {
    RC_ASSERT(!file.empty());
    std::uint64_t total = 0;
    for (const std::size_t tensor : file) total += sizes[tensor];
    RC_ASSERT(total <= limit ||
              std::count_if(file.begin(), file.end(), [&](auto i) { return sizes[i] > 0; }) == 1);
    order.insert(order.end(), file.begin(), file.end());
  }
  std::vector<std::size_t> expected(sizes.size());
  std::iota(expected.begin(), expected.end(), 0U);
  RC_ASSERT(order == expected);
}

}  // namespace
}  // namespace troupe::core
