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
      "{\"text\": \"ab\", \"source\": 7}\r\n  \n{\"completion\": \"c\", \"prompt\": \"de\"}", codec);

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(*read, ElementsAre(ElementsAre('a', 'b'), ElementsAre(~'d', ~'e', 'c')));
}

TEST(Documents, HaveTheTokenizersTokensAroundThem) {
  std::ifstream file(tests_folder() / "golden/tokenizers/llama3/tokenizer.json");
  auto tokenizer = Tokenizer::create(std::string{std::istreambuf_iterator<char>(file), {}}).value();
  const auto start = tokenizer.token_of("<|start|>").value(), end = tokenizer.token_of("<|end|>").value();
  const auto text = tokenizer.encode("light").value();
  TextCodec codec(std::move(tokenizer), end);

  const auto read = read_documents("{\"text\": \"light\"}", codec).value();

  std::vector<std::int32_t> expected = {~start};
  expected.insert(expected.end(), text.begin(), text.end());
  expected.push_back(end);
  EXPECT_THAT(read, ElementsAre(expected));
}

TEST(Documents, NameTheLineThatIsNone) {
  TextCodec codec;
  const auto message = [&](const std::string& line) {
    return read_documents("{\"text\": \"a\"}\n" + line + "\n", codec).error().message;
  };

  EXPECT_THAT(message("{\"text\": \"b\""), HasSubstr("line 2: a document: "));
  EXPECT_THAT(message("{\"text\": 5}"), HasSubstr("line 2: expected {\"text\": "));
  EXPECT_THAT(message("{\"prompt\": \"b\"}"), HasSubstr("line 2: expected "));
  EXPECT_THAT(message("{\"messages\": []}"), HasSubstr("chats have to be written"));
}

TEST(Packing, FillsRowsWithWholeDocumentsAndPadding) {
  const std::vector<Document> documents = {{1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11, 12}};

  const auto rows = pack_documents(documents, 5, 99);

  EXPECT_THAT(rows, ElementsAre(~1, 2, 3, ~8, 9, ~4, 5, 6, 7, ~99, ~10, 11, 12, ~99, ~99));
}

TEST(Packing, CutsWhatIsLongerThanARowSoThatEachTokenIsLearnedOnce) {
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
