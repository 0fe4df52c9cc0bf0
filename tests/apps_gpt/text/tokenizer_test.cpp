#include "apps/gpt/text/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "core/errors.hpp"
#include "tests/support/folder.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Errc;
using Json = nlohmann::json;
using testing::HasSubstr;

std::string read_golden(const std::string& name) {
  std::ifstream file(tests_folder() / "golden" / "tokenizers" / name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Vocabularies and tokens are of Hugging Face's tokenizers 0.23 (tests/interop/tokenizer_test.py --golden).
class GoldenTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, GivesTheTokensAndTheTextOfHuggingFaces) {
  auto tokenizer = Tokenizer::create(read_golden(std::string(GetParam()) + "/tokenizer.json"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto cases = Json::parse(read_golden(std::string(GetParam()) + "/cases.json"));
  ASSERT_GT(cases.size(), 15U);

  for (const auto& one : cases) {
    const auto text = one["text"].get<std::string>();
    const auto tokens = tokenizer->encode(text);

    ASSERT_TRUE(tokens) << tokens.error().message;
    EXPECT_EQ(*tokens, one["tokens"].get<std::vector<std::int32_t>>()) << one["text"];
    EXPECT_EQ(tokenizer->decode(*tokens, false), one["decoded"].get<std::string>()) << one["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Each, GoldenTokenizer, testing::Values("gpt2", "llama3", "qwen2", "smollm"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, GivesBackAnyTextByteForByte) {
  auto tokenizer = Tokenizer::create(read_golden("gpt2/tokenizer.json")).value();
  const std::string text = "  a\xcc\x81 \xf0\x9f\x98\x80\r\n\t<|end|> z ";

  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).value()), text);
}

TEST(Tokenizer, LeavesSpecialTokensOutWhenAsked) {
  auto tokenizer = Tokenizer::create(read_golden("qwen2/tokenizer.json")).value();
  const auto tokens = tokenizer.encode("a<|end|><tool>b").value();

  EXPECT_EQ(tokenizer.decode(tokens, false), "a<tool>b");
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{999'999, -1}), "");
}

TEST(Tokenizer, KnowsTheTokensAroundAText) {
  const auto llama = Tokenizer::create(read_golden("llama3/tokenizer.json")).value();
  const auto qwen = Tokenizer::create(read_golden("qwen2/tokenizer.json")).value();

  EXPECT_THAT(llama.before(), testing::ElementsAre(llama.token_of("<|start|>").value()));
  EXPECT_THAT(llama.after(), testing::IsEmpty());
  EXPECT_THAT(qwen.before(), testing::IsEmpty());
  EXPECT_EQ(qwen.token_of("<|other|>"), std::nullopt);
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  auto tokenizer = Tokenizer::create(read_golden("gpt2/tokenizer.json")).value();

  const auto tokens = tokenizer.encode("a\xff");

  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().code, Errc::invalid_argument);
}

/// Nearly the one of GPT-2.
class AlteredTokenizer : public testing::Test {
 protected:
  Json json_ = Json::parse(read_golden("gpt2/tokenizer.json"));

  std::string error() const {
    const auto tokenizer = Tokenizer::create(json_.dump());
    return tokenizer ? "taken" : tokenizer.error().message;
  }
};

TEST_F(AlteredTokenizer, IsTakenWhereTheDifferenceSaysNothing) {
  json_["model"]["unk_token"] = "<unk>";
  json_["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
  json_["post_processor"] = nullptr;

  EXPECT_EQ(error(), "taken");
}

TEST_F(AlteredTokenizer, NamesTheKindThatIsNotKnown) {
  const Json whole = json_;
  const auto with = [&](const char* pointer, const Json& value) {
    json_ = whole;
    json_[Json::json_pointer(pointer)] = value;
    return error();
  };

  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("the model \"Unigram\" is not known"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer \"Lowercase\""));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("pre_tokenizer \"Metaspace\""));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("expected text as pre_tokenizer.type"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Digits"}}), HasSubstr("has no ByteLevel"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("\"BertProcessing\""));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder \"WordPiece\""));
  EXPECT_THAT(with("/added_tokens/0/lstrip", true), HasSubstr("added_tokens.lstrip"));
}

TEST_F(AlteredTokenizer, RefusesExpressionsThatIcuReadsDifferently) {
  const auto with = [&](const std::string& expression, const char* behavior = "Isolated") {
    json_["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"},
                                 {"pattern", {{"Regex", expression}}},
                                 {"behavior", behavior},
                                 {"invert", false}},
                                {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return error();
  };

  EXPECT_EQ(with(R"(\p{L}+|[^\s\p{L}]{1,3}(?!\S))"), "taken");
  EXPECT_THAT(with(R"(\h+)"), HasSubstr("\\h, which is not taken"));
  EXPECT_THAT(with(R"([a-z&&[^x]])"), HasSubstr("in a class"));
  EXPECT_THAT(with("x$"), HasSubstr("'$', which is not taken"));
  EXPECT_THAT(with("(x"), HasSubstr("ICU says"));
  EXPECT_THAT(with("x", "MergedWithNext"), HasSubstr("expected Isolated or Removed"));
}

TEST_F(AlteredTokenizer, NamesAByteOrAMergeThatTheVocabularyLacks) {
  const Json whole = json_;
  json_["model"]["vocab"].erase("!");
  EXPECT_THAT(error(), HasSubstr("no token for the byte 0x21"));
  json_ = whole;
  json_["model"]["merges"][0] = {"q", "q"};
  EXPECT_THAT(error(), HasSubstr("merge 0 joins \"q\" and \"q\""));
  json_["model"]["merges"][0] = "qq";
  EXPECT_THAT(error(), HasSubstr("expected two tokens to merge"));
  json_ = whole;
  json_["model"]["vocab"]["!"] = json_["model"]["vocab"]["a"];
  EXPECT_THAT(error(), HasSubstr("have the number"));
}

TEST_F(AlteredTokenizer, FindsTheLongestAddedTokenOfThoseAtAPlace) {
  for (const auto& [text, number] : {std::pair("<|end|>!", 901), {"<|e", 902}})
    json_["added_tokens"].push_back({{"id", number}, {"content", text}, {"special", true}});
  auto tokenizer = Tokenizer::create(json_.dump()).value();
  const auto end = tokenizer.token_of("<|end|>").value();

  EXPECT_THAT(tokenizer.encode("<|end|>!<|end|><|e").value(), testing::ElementsAre(901, end, 902));
}

TEST_F(AlteredTokenizer, TakesMergesInEitherSpelling) {
  Json merges = Json::array();
  for (const auto& merge : json_["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  auto before = Tokenizer::create(json_.dump()).value();
  json_["model"]["merges"] = merges;
  auto after = Tokenizer::create(json_.dump()).value();

  EXPECT_EQ(before.encode("In the beginning").value(), after.encode("In the beginning").value());
}

}  // namespace
}  // namespace troupe::apps::gpt
