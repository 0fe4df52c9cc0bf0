#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/gpt/text/byte_letters.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A tokenizer.json of which every byte is a token.
std::string tokenizer_of_bytes() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[apps::gpt::letter_of(static_cast<unsigned char>(byte))] = byte;
  const nlohmann::json json = {
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  return json.dump();
}

class Pretrained : public testing::Test {
 protected:
  /// Trains alone, in one process, and exports to the folder of this name.
  tests::CommandResult alone(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> command = {"--export", folder_.path(name), "--sample-bytes", "0"};
    command.insert(command.end(), more.begin(), more.end());
    return local(command);
  }

  /// With the options that all runs in one process have.
  tests::CommandResult local(const std::vector<std::string>& more) {
    std::vector<std::string> command = {GPT_BINARY, "--local", "--text",  text_,
                                        "--lanes",  "8",       "--batch", "2"};
    command.insert(command.end(), {"--steps", "3", "--context", "16", "--evaluate-every", "0"});
    command.insert(command.end(), {"--evaluation-batches", "1"});
    command.insert(command.end(), more.begin(), more.end());
    return tests::run_command(command, std::chrono::seconds(60));
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
};

TEST_F(Pretrained, ModelsTrainToTheSameBitsOverAnyRanks) {
  const auto made = alone("model", {"--preset", "tiny", "--untied"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  std::string states[2];
  for (const int ranks : {1, 2}) {
    const auto out = folder_.path("out" + std::to_string(ranks)), record = out + "_record";
    const tests::GptJob job{
        ranks, 4, {}, {"--model", folder_.path("model"), "--export", out, "--export-dtype", "bf16"}};

    const auto run = tests::run_command(tests::gpt_command(job, text_, record), std::chrono::seconds(60));

    ASSERT_EQ(run.exit_code, 0) << run.output;
    states[ranks - 1] = tests::read_record(record).state + bytes_of(out + "/model.safetensors");
  }
  EXPECT_EQ(states[0], states[1]);
  EXPECT_GT(states[0].size(), 10'000U);
}

TEST_F(Pretrained, ModelsSayThemselvesWhatTheyAre) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);

  const auto refused = alone("again", {"--model", folder_.path("model"), "--layers", "3"});

  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, testing::HasSubstr("says what the model is; leave out --preset, --layers"));
}

TEST_F(Pretrained, ModelsAreNotTrainedForAnExistingDirectory) {
  std::filesystem::create_directory(folder_.path("there"));

  const tests::GptJob job{2, 4, {}, {"--export", folder_.path("there")}};
  const auto command = tests::gpt_command(job, text_, folder_.path("record"));

  for (const auto& refused :
       {alone("there", {"--preset", "tiny"}), tests::run_command(command, std::chrono::seconds(60))}) {
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_THAT(refused.output, testing::HasSubstr("there is already there and stays as it is"));
    EXPECT_THAT(refused.output, testing::Not(testing::HasSubstr("loss"))) << "no step was taken";
  }
}

TEST_F(Pretrained, ModelsAreEvaluatedAsTheyAreExported) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);

  const auto once = local({"--model", folder_.path("model"), "--evaluate-only"});

  EXPECT_EQ(once.exit_code, 0) << once.output;
  // Nearly that of guessing one of 256 bytes.
  EXPECT_THAT(once.output, testing::HasSubstr("\nperplexity 2"));
  EXPECT_THAT(once.output, testing::HasSubstr(" over 1999 tokens"));
}

TEST_F(Pretrained, ModelsAreNotTrainedForANonTextPrompt) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);
  std::ofstream(folder_.path("model") + "/tokenizer.json") << tokenizer_of_bytes();
  const std::vector<std::string> asking = {"--model", folder_.path("model"), "--prompt", "caf\xe9"};
  auto sampling = asking;
  sampling.insert(sampling.end(), {"--export", folder_.path("out"), "--sample-bytes", "5"});

  const auto refused = local(sampling);

  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, testing::HasSubstr("the prompt"));
  EXPECT_THAT(refused.output, testing::Not(testing::HasSubstr("loss"))) << "no step was taken";
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
  const tests::GptJob job{2, 4, {}, {"--model", folder_.path("model"), "--prompt", "caf\xe9"}};
  auto command = tests::gpt_command(job, text_, folder_.path("record"));
  *(std::find(command.begin(), command.end(), "--sample-bytes") + 1) = "5";
  const auto refused_job = tests::run_command(command, std::chrono::seconds(60));
  EXPECT_NE(refused_job.exit_code, 0);
  EXPECT_THAT(refused_job.output, testing::HasSubstr("the prompt"));
  EXPECT_THAT(refused_job.output, testing::Not(testing::HasSubstr("loss"))) << "no step was taken";
  const auto without_sample = alone("out", asking);
  EXPECT_EQ(without_sample.exit_code, 0) << without_sample.output;
}

TEST_F(Pretrained, ModelsAreNotTrainedForAnUnwritableExport) {
  std::ofstream(folder_.path("file")) << "no directory";
  const auto place = folder_.path("file") + "/model";

  const tests::GptJob job{2, 4, {}, {"--export", place}};
  const auto command = tests::gpt_command(job, text_, folder_.path("record"));

  for (const auto& refused :
       {local({"--preset", "tiny", "--sample-bytes", "0", "--export", place}),
        local({"--preset", "tiny", "--sample-bytes", "0", "--export", "/proc/no/model"}),
        tests::run_command(command, std::chrono::seconds(60))}) {
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_THAT(refused.output, testing::HasSubstr("cannot export to "));
    EXPECT_THAT(refused.output, testing::Not(testing::HasSubstr("loss"))) << "no step was taken";
  }
}

TEST_F(Pretrained, ModelsLearnTokenIdsWhateverTheirTokenizerIs) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);
  std::ofstream(folder_.path("model") + "/tokenizer.json") << R"({"model": {"type": "Unigram"}})";
  std::ofstream ids(folder_.path("ids.jsonl"));
  for (int i = 0; i < 40; ++i)
    ids << R"({"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9], "labels": [-100, -100, 3, 4, 5, 6, 7, 8, 9]})"
        << "\n";
  ids.close();
  std::ofstream(folder_.path("wrong.jsonl")) << "{\"tokens\": [1]}\n{\"tokens\": [1, 256]}\n";
  const auto model = folder_.path("model");

  const auto trained = local({"--model", model, "--text", folder_.path("ids.jsonl"), "--sample-bytes", "0"});
  const auto wrong = local({"--model", model, "--text", folder_.path("wrong.jsonl"), "--sample-bytes", "0"});
  const auto text = local({"--model", model, "--sample-bytes", "0"});

  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(wrong.output,
              testing::HasSubstr("wrong.jsonl: line 2: token 1 is 256; the model has 256 rows"));
  EXPECT_THAT(text.output, testing::HasSubstr("the model \"Unigram\" is not known"));
  EXPECT_THAT(text.output, testing::HasSubstr("let any tokenizer make token ids"));
  EXPECT_NE(wrong.exit_code * text.exit_code, 0);
}

TEST_F(Pretrained, ModelsShowATextsTokensAsTheyAreTaken) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);
  std::ofstream(folder_.path("chats.jsonl")) << R"({"prompt": "a", "completion": "bc"})";

  const auto lines =
      local({"--model", folder_.path("model"), "--text", folder_.path("chats.jsonl"), "--print-tokens"});

  EXPECT_EQ(lines.exit_code, 0);
  EXPECT_EQ(lines.output, "{\"tokens\": [97, 98, 99], \"labels\": [-100, 98, 99]}\n");
}

TEST_F(Pretrained, ModelsAreEvaluatedWithAFileOfItsOwn) {
  ASSERT_EQ(alone("model", {"--preset", "tiny"}).exit_code, 0);
  std::ofstream(folder_.path("own.txt")) << std::string(101, 'a');

  const auto once =
      local({"--model", folder_.path("model"), "--eval-text", folder_.path("own.txt"), "--evaluate-only"});

  EXPECT_EQ(once.exit_code, 0) << once.output;
  EXPECT_THAT(once.output, testing::HasSubstr(" over 100 tokens of the evaluation text"));
}

// Steps of a plain loop and of a job are the same only up to rounding, so each is compared with itself.
// Covers state-4.
TEST_F(Pretrained, ModelsBeginFromTheWeightsOfACheckpointAlone) {
  const auto checkpoints = folder_.path("checkpoints");
  const tests::GptJob first{2, 4, {}, {"--checkpoints", checkpoints, "--export", folder_.path("exported")}};
  const auto saved =
      tests::run_command(tests::gpt_command(first, text_, folder_.path("first")), std::chrono::seconds(60));
  ASSERT_EQ(saved.exit_code, 0) << saved.output;

  const tests::GptJob again{1, 4, {}, {"--weights-from", checkpoints, "--checkpoints", folder_.path("new")}};
  const auto begun =
      tests::run_command(tests::gpt_command(again, text_, folder_.path("again")), std::chrono::seconds(60));
  const tests::GptJob model{1, 4, {}, {"--model", folder_.path("exported")}};
  const auto expected =
      tests::run_command(tests::gpt_command(model, text_, folder_.path("model")), std::chrono::seconds(60));

  ASSERT_EQ(begun.exit_code, 0) << begun.output;
  ASSERT_EQ(expected.exit_code, 0) << expected.output;
  EXPECT_EQ(tests::read_record(folder_.path("again")).state, tests::read_record(folder_.path("model")).state);
  const auto contradicts =
      local({"--preset", "tiny", "--weights-from", checkpoints, "--width", "64", "--sample-bytes", "0"});
  EXPECT_THAT(contradicts.output, testing::HasSubstr("give the options of the run that saved it"));
  EXPECT_NE(contradicts.exit_code, 0);
}

}  // namespace
}  // namespace troupe
