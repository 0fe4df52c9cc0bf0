#include "apps/gpt/text/documents.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "core/errors.hpp"
#include "tests/support/folder.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Documents, AreLearnedWholeOrTheirCompletionsAlone) {
  TextCodec codec;

  const auto read = read_documents(
      "{\"text\": \"ab\", \"source\": 7}\r\n  \n{\"completion\": \"c\", \"prompt\": \"de\"}", codec, 256);

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(*read, ElementsAre(ElementsAre('a', 'b'), ElementsAre(~'d', ~'e', 'c')));
}

TEST(Documents, HaveTheTokenizersTokensAroundThem) {
  std::ifstream file(tests_folder() / "golden/tokenizers/llama3/tokenizer.json");
  auto tokenizer = Tokenizer::create(std::string{std::istreambuf_iterator<char>(file), {}}).value();
  const auto start = tokenizer.token_of("<|start|>").value(), end = tokenizer.token_of("<|end|>").value();
  const auto text = tokenizer.encode("light").value();
  TextCodec codec(std::move(tokenizer), end);

  const auto read = read_documents("{\"text\": \"light\"}", codec, 1000).value();

  std::vector<std::int32_t> expected = {~start};
  expected.insert(expected.end(), text.begin(), text.end());
  expected.push_back(end);
  EXPECT_THAT(read, ElementsAre(expected));
}

TEST(Documents, NameTheLineThatIsNone) {
  TextCodec codec;
  const auto message = [&](const std::string& line) {
    return read_documents("{\"text\": \"a\"}\n" + line + "\n", codec, 256).error().message;
  };

  EXPECT_THAT(message("{\"text\": \"b\""), HasSubstr("line 2: a document: "));
  EXPECT_THAT(message("{\"text\": 5}"), HasSubstr("line 2: expected {\"text\": "));
  EXPECT_THAT(message("{\"prompt\": \"b\"}"), HasSubstr("line 2: expected "));
  EXPECT_THAT(message("{\"messages\": []}"), HasSubstr("chats have to be written"));
}

TEST(Documents, MayBeTokenIdsWithLabels) {
  TextCodec codec;

  const auto read = read_documents(R"({"tokens": [3, 1, 2], "source": 7}
                                      {"tokens": [3, 1, 2], "labels": [-100, 1, -100]}
                                      {"labels": [], "tokens": []})",
                                   codec, 4);

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(*read, ElementsAre(ElementsAre(3, 1, 2), ElementsAre(~3, 1, ~2), ElementsAre()));
}

TEST(Documents, NameTheLineWithWrongTokenIds) {
  TextCodec codec;
  const auto message = [&](const std::string& line) {
    const auto read = read_documents("{\"tokens\": [1]}\n" + line, codec, 10);
    return read ? "taken" : read.error().message;
  };

  EXPECT_THAT(message(R"({"tokens": [1, 10]})"),
              HasSubstr("line 2: token 1 is 10; the model has 10 rows, for 0 to 9"));
  EXPECT_THAT(message(R"({"tokens": [-1]})"), HasSubstr("line 2: token 0 is -1"));
  EXPECT_THAT(message(R"({"tokens": [1.5]})"),
              HasSubstr("line 2: expected a list of whole numbers as tokens"));
  EXPECT_THAT(message(R"({"tokens": [1, "2"]})"), HasSubstr("found \"\"2\"\" in it at 1"));
  EXPECT_THAT(message(R"({"tokens": [4294967296]})"), HasSubstr("expected a list of whole numbers"));
  EXPECT_THAT(message(R"({"tokens": "1 2"})"), HasSubstr("expected a list of whole numbers as tokens"));
  EXPECT_THAT(message(R"({"tokens": [1, 2], "labels": [1]})"), HasSubstr("there are 2 tokens and 1 labels"));
  EXPECT_THAT(message(R"({"tokens": [1, 2], "labels": [1, 3]})"),
              HasSubstr("label 1 is 3; expected its token, 2"));
  EXPECT_THAT(message(R"({"tokens": [1, 2], "labels": null})"), HasSubstr("whole numbers as labels"));
  EXPECT_THAT(message(R"({"tokens": [1], "text": "a"})"), HasSubstr("found both: \"tokens\" and \"text\""));
}

TEST(Documents, NameATokenThatTheModelLacks) {
  std::ifstream file(tests_folder() / "golden/tokenizers/llama3/tokenizer.json");
  auto tokenizer = Tokenizer::create(std::string{std::istreambuf_iterator<char>(file), {}}).value();
  const auto end = tokenizer.token_of("<|end|>").value();
  const auto rows = static_cast<std::size_t>(end);
  TextCodec codec(std::move(tokenizer), {});

  const auto read = read_documents("{\"text\": \"light\"}\n{\"text\": \"a<|end|>\"}", codec, rows);

  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message,
              HasSubstr("line 2: the tokenizer makes token " + std::to_string(end) + " of \"<|end|>\""));
}

TEST(Packing, FillsRowsWithWholeDocumentsAndPadding) {
  const std::vector<Document> documents = {{1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11, 12}};

  const auto rows = pack_documents(documents, 5, 99);

  EXPECT_THAT(rows, ElementsAre(~1, 2, 3, ~8, 9, ~4, 5, 6, 7, ~99, ~10, 11, 12, ~99, ~99));
}

TEST(Packing, CutsOverlongDocumentsSoEachTokenIsLearnedOnce) {
  const auto rows = pack_documents({{1, 2, 3, 4, 5, 6, 7, 8}}, 4, 99);

  EXPECT_THAT(rows, ElementsAre(~1, 2, 3, 4, ~4, 5, 6, 7, ~7, 8, ~99, ~99));
}

TEST(Packing, LeavesOutRowsOfWhichNothingIsLearned) {
  const std::vector<Document> documents = {{~1, ~2, ~3, ~4, ~5, 6, 7}, {8}, {}};

  const auto rows = pack_documents(documents, 4, 0);

  EXPECT_THAT(rows, ElementsAre(~4, ~5, 6, 7));
}

}  // namespace
}  // namespace troupe::apps::gpt
