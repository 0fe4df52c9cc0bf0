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

// Vocabularies and tokens come from Hugging Face's tokenizers 0.23 (tests/interop/tokenizer_test.py
// --golden).
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
    EXPECT_EQ(tokenizer->decode(*tokens, {.with_special = false}), one["decoded"].get<std::string>())
        << one["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Each, GoldenTokenizer,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral", "added",
                                         "added_llama2"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, GivesBackAnyTextByteForByte) {
  auto tokenizer = Tokenizer::create(read_golden("gpt2/tokenizer.json")).value();
  const std::string text = "  a\xcc\x81 \xf0\x9f\x98\x80\r\n\t<|end|> z ";

  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).value()), text);
}

TEST(Tokenizer, LeavesSpecialTokensOutWhenAsked) {
  auto tokenizer = Tokenizer::create(read_golden("qwen2/tokenizer.json")).value();
  const auto tokens = tokenizer.encode("a<|end|><tool>b").value();

  EXPECT_EQ(tokenizer.decode(tokens, {.with_special = false}), "a<tool>b");
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
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer \"Lowercase\""));
  EXPECT_THAT(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}}),
              HasSubstr("normalizer.pattern.Regex is"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Whitespace"}}), HasSubstr("pre_tokenizer \"Whitespace\""));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("decoder \"ByteLevel\""));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("\"BertProcessing\""));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder \"WordPiece\""));
  EXPECT_THAT(with("/version", "2.0"), HasSubstr("expected the version 1.0"));
}

TEST_F(AlteredTokenizer, NamesAMemberOfTheWrongType) {
  const Json whole = json_;
  const auto with = [&](const char* pointer, const Json& value) {
    json_ = whole;
    json_[Json::json_pointer(pointer)] = value;
    return error();
  };

  EXPECT_THAT(with("/model/ignore_merges", "yes"), HasSubstr("true or false as model.ignore_merges"));
  EXPECT_THAT(with("/model/byte_fallback", 1), HasSubstr("true or false as model.byte_fallback"));
  EXPECT_THAT(with("/model/unk_token", 0), HasSubstr("text as model.unk_token"));
  EXPECT_THAT(with("/model/vocab", Json::array()), HasSubstr("an object as model.vocab"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("the number of a token, found \"-1\""));
  EXPECT_THAT(with("/model/merges", "a b"), HasSubstr("a list as model.merges"));
  EXPECT_THAT(with("/added_tokens/0/lstrip", 1), HasSubstr("true or false as added_tokens.lstrip"));
  EXPECT_THAT(with("/added_tokens/0/normalized", nullptr), HasSubstr("as added_tokens.normalized"));
  EXPECT_THAT(with("/added_tokens", 7), HasSubstr("a list as added_tokens"));
  EXPECT_THAT(with("/pre_tokenizer/use_regex", "no"), HasSubstr("true or false as pre_tokenizer.use_regex"));
}

TEST_F(AlteredTokenizer, RefusesNumbersOfAddedTokensThatTokenizersWouldChange) {
  const Json whole = json_;
  json_["added_tokens"][0]["id"] = json_["added_tokens"][0]["id"].get<int>() + 1;
  EXPECT_THAT(error(), HasSubstr("would get"));
  json_ = whole;
  json_["added_tokens"].push_back(json_["added_tokens"][0]);
  EXPECT_THAT(error(), HasSubstr("is an added token twice"));
}

TEST_F(AlteredTokenizer, NamesTheExpressionThatIsNotTaken) {
  json_["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "x)"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(error(), HasSubstr("the regular expression x) is not taken: unmatched close parenthesis"));
  json_["pre_tokenizer"]["behavior"] = "Doubled";
  EXPECT_THAT(error(), HasSubstr("expected Isolated, Removed, Contiguous"));
}

TEST_F(AlteredTokenizer, NamesAMergeThatTheVocabularyLacks) {
  const Json whole = json_;
  json_["model"]["merges"][0] = {"q", "q"};
  EXPECT_THAT(error(), HasSubstr("merge 0 joins \"q\" and \"q\""));
  for (const Json& wrong :
       {Json("qq"), Json("h e e"), Json("h  e"), Json({"h", "e", "e"}), Json({"h"}), Json(7)}) {
    json_ = whole;
    json_["model"]["merges"][1] = wrong;
    EXPECT_THAT(error(), HasSubstr("expected two tokens to merge")) << wrong;
    EXPECT_THAT(error(), HasSubstr(wrong.is_string() ? wrong.get<std::string>() : "found \"")) << wrong;
  }
  json_ = whole;
  json_["model"]["vocab"]["!"] = json_["model"]["vocab"]["a"];
  EXPECT_THAT(error(), HasSubstr("have the number"));
}

TEST_F(AlteredTokenizer, RefusesTextThatNeedsATokenItLacks) {
  json_["model"]["vocab"].erase("\u00c3");  // of the byte c3, with which e acute begins
  json_["model"]["vocab"]["<none>"] = 32'000;
  json_["added_tokens"] = Json::array();
  std::erase_if(json_["model"]["merges"].get_ref<Json::array_t&>(), [](const Json& merge) {
    return (merge[0].get<std::string>() + merge[1].get<std::string>()).find("\u00c3") != std::string::npos;
  });
  auto tokenizer = Tokenizer::create(json_.dump()).value();
  json_["model"]["unk_token"] = "<none>";
  auto with_unknown = Tokenizer::create(json_.dump()).value();
  json_["model"]["unk_token"] = "<?>";
  auto without = Tokenizer::create(json_.dump()).value();

  EXPECT_TRUE(tokenizer.encode("the cafe"));
  EXPECT_THAT(tokenizer.encode("the caf\u00e9").error().message,
              testing::AllOf(HasSubstr("the byte 0xc3"), HasSubstr("at offset 7 of the text")));
  EXPECT_THAT(with_unknown.encode("\u00e9").value(), testing::Contains(32'000));
  EXPECT_THAT(without.encode("\u00e9").error().message, HasSubstr("nor its unknown token \"<?>\""));
}

TEST_F(AlteredTokenizer, FindsTheLongestAddedTokenAtAPlace) {
  auto added = json_["added_tokens"][0];
  const auto end = added["id"].get<int>();
  for (const char* text : {"<|end|>!", "<|e"}) {
    added["id"] = added["id"].get<int>() + 1;
    added["content"] = text;
    json_["added_tokens"].push_back(added);
  }
  auto tokenizer = Tokenizer::create(json_.dump()).value();

  EXPECT_THAT(tokenizer.encode("<|end|>!<|end|><|e").value(), testing::ElementsAre(end + 1, end, end + 2));
}

TEST_F(AlteredTokenizer, TakesMergesInEitherSpelling) {
  Json merges = Json::array();
  for (const auto& merge : json_["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  merges.insert(merges.begin(), "#version: 0.2");
  auto before = Tokenizer::create(json_.dump()).value();
  json_["model"]["merges"] = merges;
  auto after = Tokenizer::create(json_.dump()).value();

  EXPECT_EQ(before.encode("In the beginning").value(), after.encode("In the beginning").value());
}

TEST(Tokenizer, PutsNoBlankBeforeATextThatContinuesAnother) {
  for (const char* name : {"llama2/tokenizer.json", "mistral/tokenizer.json", "smollm/tokenizer.json"}) {
    auto tokenizer = Tokenizer::create(read_golden(name)).value();
    const auto tokens = tokenizer.encode("light of", true).value();

    EXPECT_EQ(tokenizer.decode(tokens, {.continues = true}), "light of") << name;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("light of").value(), {.continues = true}), " light of")
        << name;
  }
}

TEST(Tokenizer, PutsTheTokensOfSeveralTemplatesAroundEachOther) {
  Json json = Json::parse(read_golden("llama2/tokenizer.json"));
  const auto special = [](const char* text, int number) {
    return Json{{"type", "TemplateProcessing"},
                {"single",
                 {{{"SpecialToken", {{"id", text}}}},
                  {{"Sequence", {{"id", "A"}}}},
                  {{"SpecialToken", {{"id", text}}}}}},
                {"special_tokens", {{text, {{"ids", {number}}}}}}};
  };
  json["post_processor"] = {{"type", "Sequence"}, {"processors", {special("<s>", 1), special("</s>", 2)}}};
  const auto tokenizer = Tokenizer::create(json.dump()).value();

  EXPECT_THAT(tokenizer.before(), testing::ElementsAre(2, 1));
  EXPECT_THAT(tokenizer.after(), testing::ElementsAre(1, 2));
  json["post_processor"]["processors"][0]["single"][1]["Sequence"]["id"] = "B";
  EXPECT_THAT(Tokenizer::create(json.dump()).error().message, HasSubstr("the sequence A once"));
}

}  // namespace
}  // namespace troupe::apps::gpt
