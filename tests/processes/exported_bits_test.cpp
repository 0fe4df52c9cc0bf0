#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "apps/gpt/model/initial_values.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "tests/processes/gpt_job.hpp"

namespace troupe {
namespace {

using apps::gpt::ModelConfig;

struct Kind {
  const char* name;
  bool tied;
  bool biased;    ///< as Qwen2
  bool has_norm;  ///< of queries and keys, as Qwen3

  friend std::ostream& operator<<(std::ostream& out, const Kind& of) { return out << of.name; }
};

class ExportedBits : public testing::TestWithParam<Kind> {
 protected:
  /// A directory of Hugging Face with a small model of the kind.
  std::string make_model() const {
    ModelConfig config = *apps::gpt::preset("tiny");
    config.key_value_heads = 1;
    config.tied_embeddings = GetParam().tied;
    config.query_key_value_bias = GetParam().biased;
    config.query_key_norm = GetParam().has_norm;
    const auto specs = apps::gpt::parameters(config);
    const apps::gpt::RandomValues values(7);
    const auto written =
        apps::gpt::export_model(config,
                                [&](std::size_t i, core::ElementRange range, std::span<float> out) {
                                  return values.read(specs[i], range, out);
                                },
                                {.directory = folder_.path("model")});
    EXPECT_TRUE(written) << written.error().message;
    return folder_.path("model");
  }

  struct Trained {
    tests::GptRecord record;
    std::string config, tensors;  ///< the exported files
  };

  Trained train(int ranks, const std::string& strategy, const std::string& model) const {
    const auto name = strategy + std::to_string(ranks);
    const auto to = folder_.path(name + "-exported"), output = folder_.path(name);
    const tests::GptJob job{
        ranks, 6, {}, {"--strategy", strategy, "--model", model, "--export", to, "--gathered-units", "1"}};
    const auto result = tests::run_command(tests::gpt_command(job, text_, output), std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return {tests::read_record(output), bytes_of(to + "/config.json"), bytes_of(to + "/model.safetensors")};
  }

  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  tests::ScratchFolder folder_;
  std::string text_ = tests::write_sample_text(folder_);
};

// Covers ranks-19.
TEST_P(ExportedBits, OfModelsBegunFromDirectoriesAreOneRanks) {
  const auto model = make_model();
  const auto alone = train(1, "ddp", model);
  ASSERT_EQ(alone.record.losses.size(), 6U);
  ASSERT_FALSE(alone.config.empty());
  ASSERT_EQ(alone.tensors.size(), bytes_of(model + "/model.safetensors").size());
  ASSERT_NE(alone.tensors, bytes_of(model + "/model.safetensors"));

  // Where every rank keeps all parameters rank 0 exports alone.
  for (const auto& [ranks, strategy] : {std::pair{2, "zero3"}, {3, "zero3"}, {2, "zero2"}, {2, "ddp"}}) {
    const auto together = train(ranks, strategy, model);
    EXPECT_EQ(together.record.losses, alone.record.losses) << ranks << " ranks, " << strategy;
    EXPECT_EQ(together.record.state, alone.record.state) << ranks << " ranks, " << strategy;
    EXPECT_EQ(together.config, alone.config) << ranks << " ranks, " << strategy;
    EXPECT_TRUE(together.tensors == alone.tensors) << ranks << " ranks, " << strategy;
  }
}

INSTANTIATE_TEST_SUITE_P(Real, ExportedBits,
                         testing::Values(Kind{"Qwen2", true, true, false}, Kind{"Qwen3", false, false, true}),
                         testing::PrintToStringParamName());

TEST(ExportOfARestartedJob, MakesWayForThatOfTheNextStart) {
  const tests::ScratchFolder folder;
  const auto model = folder.path("model");
  auto command = tests::gpt_command({1,
                                     3,
                                     {"--max-restarts", "1", "--restart-backoff", "0"},
                                     {"--export", model, "--checkpoints", folder.path("saved")}},
                                    tests::write_sample_text(folder), folder.path("output"));
  const auto program = std::find(command.begin(), command.end(), "--") + 1;
  command.insert(program, {"sh", "-c", "\"$0\" \"$@\" && test \"$TROUPE_GENERATION\" = 1"});

  const auto result = tests::run_command(command, std::chrono::seconds(60));

  EXPECT_EQ(result.exit_code, 0) << result.output;
  const auto bytes_of = [](const std::string& directory) {
    std::ifstream file(directory + "/model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_FALSE(bytes_of(model).empty()) << result.output;
  EXPECT_EQ(bytes_of(model), bytes_of(model + ".before_epoch_2")) << result.output;
}

}  // namespace
}  // namespace troupe
