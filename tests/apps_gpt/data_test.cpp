#include "apps/gpt/text/data.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "tests/apps_gpt/text_file.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::HasSubstr;

std::vector<std::uint8_t> counting(std::size_t bytes) {
  std::vector<std::uint8_t> text(bytes);
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<std::uint8_t>(i);
  return text;
}

std::vector<std::int32_t> tokens_at(const MicrobatchPlace& place) {
  Batch batch({.batch = 4, .length = 3});
  batch.fill_at_random(counting(256), place);
  return {batch.tokens().begin(), batch.tokens().end()};
}

TEST(Corpus, KeepsTheLastTwentiethForEvaluation) {
  const TextFile file(std::string(190, 'a') + std::string(10, 'b'));

  const Corpus corpus = Corpus::open(file.path(), 4).value();

  EXPECT_EQ(corpus.training().size(), 190U);
  EXPECT_EQ(corpus.training().token(189), 'a');
  EXPECT_EQ(corpus.evaluation().size(), 10U);
  EXPECT_EQ(corpus.evaluation().token(0), 'b');
}

TEST(Corpus, TooShortForItsContextSaysWhatIsNeeded) {
  const TextFile file(some_text(1300));

  EXPECT_THAT(Corpus::open(file.path(), 65).error().message,
              HasSubstr("has 1300 bytes; a context of 65 needs at least 1320"));
  EXPECT_TRUE(Corpus::open(file.path(), 64));
}

TEST(Corpus, ThatIsMissingOrNoFileIsAnError) {
  EXPECT_EQ(Corpus::open("/nonexistent/text", 4).error().code, core::Errc::not_found);
  EXPECT_THAT(Corpus::open("/", 4).error().message, HasSubstr("must be a regular file"));
}

void overwrite(const TextFile& file, std::size_t place, const std::string& bytes) {
  std::fstream(file.path(), std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(place))
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Sets the time that a later write would have, however coarse the clock of the file system is.
void let_time_pass(const TextFile& file) {
  std::filesystem::last_write_time(file.path(),
                                   std::filesystem::last_write_time(file.path()) + std::chrono::seconds(1));
}

TEST(Corpus, KnowsThatItsFileBecameShorter) {
  const TextFile file(some_text(1300));
  const Corpus corpus = Corpus::open(file.path(), 8).value();
  ASSERT_TRUE(corpus.check_unchanged());

  std::filesystem::resize_file(file.path(), 1299);

  const auto refused = corpus.check_unchanged();
  EXPECT_EQ(refused.error().code, core::Errc::io);
  EXPECT_THAT(refused.error().message,
              HasSubstr("the text " + file.path() +
                        " became shorter while it was read: it had 1300 bytes and has 1299"));
}

TEST(Corpus, KnowsThatItsFileWasOverwritten) {
  const TextFile file(some_text(1300));
  const Corpus corpus = Corpus::open(file.path(), 8).value();

  overwrite(file, 1299, "Z");
  let_time_pass(file);

  EXPECT_THAT(corpus.check_unchanged().error().message, HasSubstr("was overwritten while it was read"));
}

TEST(Corpus, MayBeTouchedAppendedToReplacedAndRemoved) {
  const TextFile file(some_text(1300));
  const Corpus corpus = Corpus::open(file.path(), 8).value();

  let_time_pass(file);
  EXPECT_TRUE(corpus.check_unchanged());
  overwrite(file, 1300, "more");
  let_time_pass(file);
  EXPECT_TRUE(corpus.check_unchanged());
  const TextFile other("other", "_other");
  std::filesystem::rename(other.path(), file.path());
  EXPECT_TRUE(corpus.check_unchanged());
  std::filesystem::remove(file.path());
  EXPECT_TRUE(corpus.check_unchanged());
  EXPECT_EQ(corpus.training().token(0), some_text(1)[0]);
}

TEST(Corpus, KnowsThatItsEvaluationTextWasCut) {
  const TextFile text(some_text(1300)), evaluation(some_text(1000), "_evaluation");
  TextCodec codec;
  const Corpus corpus =
      Corpus::open({.text = text.path(), .evaluation = evaluation.path(), .context = 8, .vocabulary = 256},
                   codec)
          .value();
  ASSERT_TRUE(corpus.check_unchanged());

  std::filesystem::resize_file(evaluation.path(), 0);

  EXPECT_THAT(corpus.check_unchanged().error().message, HasSubstr(evaluation.path()));
}

TEST(Corpus, CallsAGitLfsPointerWhatItIs) {
  const TextFile file(
      "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 4976698672\n");

  EXPECT_THAT(Corpus::open(file.path(), 2).error().message,
              HasSubstr("is a pointer of Git LFS, not the file itself, which has 4976698672 bytes"));
}

TEST(Batch, TargetsAreTheTokensOnePlaceFurther) {
  Batch batch({.batch = 3, .length = 5});

  batch.fill_at_random(counting(200), {.seed = 1});

  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(batch.targets()[i], batch.tokens()[i] + 1);
    if (i % 5 != 0) {
      EXPECT_EQ(batch.tokens()[i], batch.targets()[i - 1]);
    }
  }
}

TEST(Batch, DependsOnSeedStepLaneAndMicrobatchAlone) {
  const MicrobatchPlace place{.seed = 5, .step = core::Step{3}, .lane = core::Lane{2}, .microbatch = 1};
  auto seed = place, step = place, lane = place, microbatch = place;
  seed.seed = 6;
  step.step.value = 4;
  lane.lane.value = 3;
  microbatch.microbatch = 2;

  EXPECT_EQ(tokens_at(place), tokens_at(place));
  for (const auto& other : {seed, step, lane, microbatch}) EXPECT_NE(tokens_at(place), tokens_at(other));
}

TEST(Batch, AtRandomReachesEveryPlaceAndNoFurther) {
  const auto text = counting(8);  // five places for a sequence of three and its last target
  Batch batch({.batch = 200, .length = 3});
  std::vector<int> seen(5);

  batch.fill_at_random(text, {.seed = 1});

  for (std::size_t sequence = 0; sequence < 200; ++sequence) ++seen.at(batch.tokens()[sequence * 3]);
  EXPECT_THAT(seen, testing::Each(testing::Gt(15)));
}

TEST(Corpus, OfDocumentsKeepsOneRowForEvaluation) {
  const TextFile file("{\"text\": \"abcd\"}\n\n{\"prompt\": \"ef\", \"completion\": \"gh\"}\n", ".jsonl");
  TextCodec codec;

  const Corpus corpus = Corpus::open({.text = file.path(), .context = 4, .vocabulary = 256}, codec).value();

  ASSERT_EQ(corpus.training().size(), 5U);
  ASSERT_EQ(corpus.evaluation().size(), 5U);
  Batch batch({.batch = 1, .length = 4});
  batch.fill_at_random(corpus.training(), {.seed = 1});
  EXPECT_THAT(batch.tokens(), testing::ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(batch.targets(), testing::ElementsAre('b', 'c', 'd', kNoTarget));
  batch.fill_evenly(corpus.evaluation(), 0, 1);
  EXPECT_THAT(batch.tokens(), testing::ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(batch.targets(), testing::ElementsAre(kNoTarget, 'g', 'h', kNoTarget));
}

TEST(Corpus, OfTooFewDocumentsIsAnError) {
  const TextFile file("{\"text\": \"abcd\"}\n", ".jsonl");
  TextCodec codec;

  EXPECT_THAT(Corpus::open({.text = file.path(), .context = 4, .vocabulary = 256}, codec).error().message,
              HasSubstr("fill 1 sequences of 4 tokens; 2 are needed"));
}

TEST(Corpus, MayEvaluateWithItsOwnFileInAnyForm) {
  const TextFile text("abcdefghi"), documents("{\"tokens\": [7, 8, 9]}\n", ".jsonl");
  TextCodec codec;

  const Corpus corpus =
      Corpus::open({.text = text.path(), .evaluation = documents.path(), .context = 4, .vocabulary = 256},
                   codec)
          .value();
  const Corpus turned =
      Corpus::open({.text = documents.path(), .evaluation = text.path(), .context = 2, .vocabulary = 256},
                   codec)
          .value();

  EXPECT_EQ(corpus.training().size(), 9U) << "all of it";
  EXPECT_EQ(corpus.evaluation().row(), 5U);
  EXPECT_EQ(corpus.evaluation().token(2), 9);
  EXPECT_EQ(turned.training().size(), 3U);
  EXPECT_EQ(turned.evaluation().size(), 9U);
  EXPECT_THAT(
      Corpus::open({.text = text.path(), .evaluation = text.path(), .context = 9, .vocabulary = 256}, codec)
          .error()
          .message,
      HasSubstr("has 9 tokens; a context of 9 needs at least 10"));
}

TEST(Corpus, RefusesTokensThatTheModelHasNoRowFor) {
  const TextFile bytes("abcdefghi" + std::string(100, 'z')),
      ids("{\"tokens\": [1, 2]}\n{\"tokens\": [5]}\n", ".jsonl");
  TextCodec codec;

  EXPECT_THAT(Corpus::open({.text = bytes.path(), .context = 1, .vocabulary = 105}, codec).error().message,
              HasSubstr("byte 8 is 0x69; the model has 105 rows, for 0 to 104"));
  EXPECT_THAT(Corpus::open({.text = ids.path(), .context = 1, .vocabulary = 5}, codec).error().message,
              HasSubstr("line 2: token 0 is 5; the model has 5 rows, for 0 to 4"));
}

TEST(Corpus, OfTokenIdsNeedsNoTokenizer) {
  const TextFile ids("{\"tokens\": [1, 2, 3]}\n{\"tokens\": [4, 5, 6]}\n", ".jsonl"),
      text("{\"text\": \"a\"}\n", "_text.jsonl");
  TextCodec codec(core::Error{core::Errc::unavailable, "the model \"Unigram\" is not known"}, 3);

  EXPECT_TRUE(Corpus::open({.text = ids.path(), .context = 2, .vocabulary = 7}, codec));
  EXPECT_THAT(Corpus::open({.text = text.path(), .context = 2, .vocabulary = 7}, codec).error().message,
              HasSubstr("line 1: the model \"Unigram\" is not known"));
}

TEST(Batch, InOrderHasEveryTokenOnceAsATarget) {
  const auto text = counting(12);
  Batch batch({.batch = 2, .length = 3});
  ASSERT_EQ(sequences_in_order(text, 3), 4U);

  EXPECT_EQ(batch.fill_in_order(text, 0), 6U);
  EXPECT_THAT(batch.targets(), testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(batch.fill_in_order(text, 2), 5U);
  EXPECT_THAT(batch.targets(), testing::ElementsAre(7, 8, 9, 10, 11, kNoTarget));
}

TEST(Batch, InOrderOfRowsTakesEachRowOnce) {
  const std::vector<std::int32_t> rows = {1, 2, ~3, 4, 5, 6};
  const TokenText text(rows, 3);
  Batch batch({.batch = 2, .length = 2});
  ASSERT_EQ(sequences_in_order(text, 2), 2U);

  EXPECT_EQ(batch.fill_in_order(text, 0), 3U);

  EXPECT_THAT(batch.tokens(), testing::ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(batch.targets(), testing::ElementsAre(2, kNoTarget, 5, 6));
}

TEST(Batch, EvenlyCoversTheTextFromItsStart) {
  Batch batch({.batch = 2, .length = 2});
  std::vector<std::int32_t> starts;

  for (std::size_t index = 0; index < 4; ++index) {
    batch.fill_evenly(counting(18), index, 4);
    starts.push_back(batch.tokens()[0]);
    starts.push_back(batch.tokens()[2]);
  }

  EXPECT_THAT(starts, testing::ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
}

}  // namespace
}  // namespace troupe::apps::gpt
