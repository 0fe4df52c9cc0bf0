#include "apps/gpt/text/text_codec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/folder.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::HasSubstr;

TEST(TextCodec, OfADirectoryWithoutATokenizerIsBytes) {
  const tests::ScratchFolder folder;
  std::ofstream(folder.path("config.json")) << "{}";

  EXPECT_TRUE(TextCodec::open(folder.path(), {}).value().is_bytes());
}

TEST(TextCodec, IsNotBytesForATokenizerInAnotherForm) {
  for (const std::string name : {"tokenizer.model", "vocab.json", "merges.txt", "tekken.json"}) {
    const tests::ScratchFolder folder;
    std::ofstream(folder.path(name)) << "{}";

    const auto refused = TextCodec::open(folder.path(), {});

    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code, core::Errc::not_found);
    EXPECT_THAT(refused.error().message, HasSubstr("expected tokenizer.json"));
    EXPECT_THAT(refused.error().message, HasSubstr("found " + name));
    EXPECT_THAT(refused.error().message, HasSubstr("save_pretrained"));
  }
}

TEST(TextCodec, TakesTokenizerJsonWhateverElseIsThere) {
  const tests::ScratchFolder folder;
  std::filesystem::copy(tests_folder() / "golden/tokenizers/gpt2/tokenizer.json", folder.path());
  std::ofstream(folder.path("vocab.json")) << "{}";

  EXPECT_FALSE(TextCodec::open(folder.path(), {}).value().is_bytes());
}

}  // namespace
}  // namespace troupe::apps::gpt
