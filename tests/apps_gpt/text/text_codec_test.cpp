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

TEST(TextCodec, RefusesTokensThatOnlyTheConfigurationAdds) {
  const tests::ScratchFolder folder;
  std::filesystem::copy(tests_folder() / "golden/tokenizers/llama2/tokenizer.json", folder.path());
  const auto with = [&](const std::string& added) {
    std::ofstream(folder.path("tokenizer_config.json")) << R"({"added_tokens_decoder": {)" << added << "}}";
    const auto codec = TextCodec::open(folder.path(), {});
    return codec ? "taken" : codec.error().message;
  };

  EXPECT_EQ(with(R"("1": {"content": "<s>", "special": true})"), "taken");
  EXPECT_THAT(with(R"("900": {"content": "<more>"})"), HasSubstr("adds the token \"<more>\" as \"900\""));
  EXPECT_THAT(with(R"("2": {"content": "<s>"})"), HasSubstr("tokenizer.json has it as 1"));
}

}  // namespace
}  // namespace troupe::apps::gpt
