// What ranks of one job, or a run and the checkpoint that it resumes from, must have alike: a table of
// options, each with what is said about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes/gpt_job.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Options = std::vector<std::pair<std::string, std::string>>;

/// A job of a second; options without a value are flags.
Options small_job(const std::string& text) {
  return {{"--text", text},
          {"--preset", "tiny"},
          {"--lanes", "4"},
          {"--batch", "2"},
          {"--steps", "4"},
          {"--evaluate-every", "0"},
          {"--sample-bytes", "0"},
          {"--evaluation-batches", "1"},
          {"--bucket-elements", "3000"}};
}

Options with(Options options, const Options& others) {
  for (const auto& [name, value] : others) {
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&, key = name](const auto& one) { return one.first == key; });
    if (found == options.end()) {
      options.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
  return options;
}

std::vector<std::string> command_of(const Options& options) {
  std::vector<std::string> command{GPT_BINARY};
  for (const auto& [name, value] : options) {
    command.push_back(name);
    if (!value.empty()) command.push_back(value);
  }
  return command;
}

std::string shell_of(const std::vector<std::string>& command) {
  std::string line = "exec";
  for (const auto& word : command) line += " '" + word + "'";
  return line;
}

/// An option that one of two ranks has another value of.
struct Differs {
  Options option;    ///< of rank 1
  std::string said;  ///< what rank 0 has and what rank 1 has
  Options of_both = {};

  friend std::ostream& operator<<(std::ostream& out, const Differs& of) {
    return out << of.option.front().first << ' ' << of.option.front().second;
  }
};

std::string said(const std::string& name, const std::string& ours, const std::string& theirs) {
  return "rank 0 has \"" + name + " " + ours + "\", rank 1 has \"" + name + " " + theirs + "\"";
}

Differs differs(const std::string& name, const std::string& ours, const std::string& theirs,
                const Options& of_both = {}) {
  return {{{name, theirs}}, said(name, ours, theirs), of_both};
}

Differs flag(const std::string& name) {
  return {{{name, ""}}, said(name, "off", "on")};
}

class RanksWithOtherSettings : public testing::TestWithParam<Differs> {
 protected:
  ScratchFolder folder_;
  std::string text_ = write_sample_text(folder_);

  /// Two ranks, of which the second has these options too.
  CommandResult run(const Options& of_both, const Options& of_second) {
    const auto first = with(small_job(text_), of_both);
    const auto script = folder_.path("ranks.sh");
    std::ofstream(script) << "if [ \"$RANK\" = 1 ]; then\n"
                          << shell_of(command_of(with(first, of_second))) << "\nfi\n"
                          << shell_of(command_of(first)) << "\n";
    return run_command({TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node", "2", "--", "sh", script},
                       std::chrono::seconds(60));
  }
};

TEST_P(RanksWithOtherSettings, AreRefusedWithBothValuesWithinSeconds) {
  const auto& [option, text, of_both] = GetParam();
  const auto start = std::chrono::steady_clock::now();

  const auto result = run(of_both, option);

  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("rank 1 runs with other settings than rank 0"), HasSubstr(text)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

const Options kExperts{{"--experts", "4"}};

INSTANTIATE_TEST_SUITE_P(
    EachOption, RanksWithOtherSettings,
    testing::Values(
        differs("--seed", "1", "2"), differs("--learning-rate", "0.003", "0.001"),
        differs("--warmup", "50", "3"), differs("--floor", "0.1", "0.2"), differs("--steps", "4", "5"),
        differs("--batch", "2", "3"), differs("--lanes", "4", "2"), differs("--microbatches", "1", "2"),
        differs("--context", "16", "8", {{"--context", "16"}}),
        differs("--layers", "2", "3", {{"--layers", "2"}}), differs("--heads", "2", "4", {{"--heads", "2"}}),
        differs("--width", "16", "32", {{"--width", "16"}, {"--heads", "2"}}),
        differs("--feed-forward", "32", "48", {{"--feed-forward", "32"}}), differs("--norm", "rms", "layer"),
        differs("--activation", "swiglu", "gelu"), flag("--untied"), differs("--optimizer", "adamw", "lion"),
        differs("--weight-decay", "0.1", "0.2"), differs("--beta2", "0.95", "0.9"),
        differs("--clip-norm", "1", "2"), differs("--loss-scale", "none", "8"),
        differs("--loss-average", "tokens", "lanes"), differs("--numerics", "ordered", "fast"),
        differs("--wire-dtype", "f32", "bf16"), differs("--strategy", "zero1", "ddp"),
        differs("--gathered-units", "2", "1"), differs("--bucket-elements", "3000", "4000"),
        flag("--no-overlap"), flag("--recompute"), differs("--collectives", "automatic", "tcp"),
        differs("--evaluate-every", "0", "2"), differs("--evaluation-batches", "1", "2"),
        differs("--sample-bytes", "0", "5"), differs("--prompt", "And", "The", {{"--prompt", "And"}}),
        differs("--temperature", "1", "0.5", {{"--temperature", "1"}}),
        differs("--top-k", "40", "20", {{"--top-k", "40"}}),
        differs("--initial-deviation", "0.02", "0.03", {{"--initial-deviation", "0.02"}}),
        differs("--save-every", "100", "2"), differs("--keep-last", "3", "2"),
        differs("--keep-every", "0", "2"), differs("--compare-replicas-every", "0", "2"),
        differs("--local-every", "10", "2"), differs("--replication-factor", "1", "2"),
        differs("--replication-jump", "1", "2"), differs("--resume", "auto", "never"), flag("--force-resume"),
        differs("--export-dtype", "f32", "bf16"), differs("--experts", "0", "4"),
        differs("--experts-per-token", "2", "1", kExperts),
        differs("--expert-feed-forward", "32", "16", with(kExperts, {{"--expert-feed-forward", "32"}})),
        differs("--balance", "0.01", "0.02", kExperts), differs("--z-loss", "0", "0.1", kExperts),
        differs("--capacity-factor", "default", "1.5", kExperts),
        Differs{{{"--bias-rate", "0.1"}}, "--bias-rate", kExperts},
        Differs{{{"--checkpoints", "/tmp/troupe-never-made"}}, said("--checkpoints", "none", "given")},
        Differs{{{"--export", "/tmp/troupe-never-made"}}, said("--export", "none", "given")}));

using RanksWithOtherTexts = RanksWithOtherSettings;

TEST_F(RanksWithOtherTexts, AreRefusedThoughTheirPathsAreTheSameLength) {
  std::ofstream(folder_.path("more")) << sample_text() << "x";

  const auto result = run({}, {{"--text", folder_.path("more")}});

  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 has \"--text a text with the hash"));
}

TEST_F(RanksWithOtherTexts, AreRefusedWhereThoseToEvaluateWithDiffer) {
  std::ofstream(folder_.path("more")) << sample_text() << "x";

  const auto result = run({{"--evaluation-text", text_}}, {{"--evaluation-text", folder_.path("more")}});

  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 has \"--evaluation-text a text with the hash"));
}

TEST_F(RanksWithOtherTexts, TrainWhereOnlyPathsDiffer) {
  std::filesystem::copy(text_, folder_.path("copy"));

  const auto result = run({}, {{"--text", folder_.path("copy")},
                               {"--output", folder_.path("second")},
                               {"--staging-mib", "8"},
                               {"--trace-steps", "1"},
                               {"--peak-tera-flops", "3"}});

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

/// An option that a run has another value of than the one that saved the checkpoint.
struct Resumed {
  Options option;
  int exit_code = 0;  ///< without --force-resume
  std::string said;
  bool can_be_forced = true;

  friend std::ostream& operator<<(std::ostream& out, const Resumed& of) {
    return out << of.option.front().first << ' ' << of.option.front().second;
  }
};

class ResumeWithOtherSettings : public testing::TestWithParam<Resumed> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<ScratchFolder>();
    text_ = write_sample_text(*folder_);
    saved_ = folder_->path("saved");
    const auto result = run_command(command_of(with(small_job(text_), {{"--checkpoints", saved_}})),
                                    std::chrono::seconds(60));
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  CommandResult resume(const Options& options) {
    const auto own = folder_->path("own");
    std::filesystem::remove_all(own);
    std::filesystem::copy(saved_, own, std::filesystem::copy_options::recursive);
    return run_command(
        command_of(with(with(small_job(text_), {{"--checkpoints", own}, {"--steps", "6"}}), options)),
        std::chrono::seconds(60));
  }

  static std::unique_ptr<ScratchFolder> folder_;
  static std::string text_;
  static std::string saved_;
};

std::unique_ptr<ScratchFolder> ResumeWithOtherSettings::folder_;
std::string ResumeWithOtherSettings::text_;
std::string ResumeWithOtherSettings::saved_;

TEST_P(ResumeWithOtherSettings, SaysWhatDiffers) {
  const auto& [option, exit_code, text, can_be_forced] = GetParam();

  const auto result = resume(option);

  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  EXPECT_THAT(result.output, HasSubstr(text));
  if (exit_code == 0) return;
  const auto forced = resume(with(option, {{"--force-resume", ""}}));
  EXPECT_EQ(forced.exit_code, can_be_forced ? 0 : 97) << forced.output;
  EXPECT_THAT(forced.output, HasSubstr(text));
}

Resumed curve(const std::string& name, const std::string& value, const std::string& was) {
  return {{{name, value}}, 97, name + " " + value + " (it was saved with " + was + ")"};
}
Resumed model(const std::string& name, const std::string& value, const std::string& was) {
  return {{{name, value}}, 97, name + " " + value + " (it was saved with " + was + ")", false};
}
Resumed told(const std::string& name, const std::string& value, const std::string& was) {
  return {{{name, value}}, 0, name + " " + value + " (it was saved with " + was + ")"};
}

INSTANTIATE_TEST_SUITE_P(
    EachOption, ResumeWithOtherSettings,
    testing::Values(
        curve("--lanes", "2", "4"), curve("--batch", "3", "2"), curve("--microbatches", "2", "1"),
        curve("--seed", "2", "1"), curve("--numerics", "fast", "ordered"),
        curve("--wire-dtype", "bf16", "f32"), curve("--optimizer", "lion", "adamw"),
        curve("--weight-decay", "0.2", "0.1"), curve("--beta2", "0.9", "0.95"),
        curve("--loss-scale", "8", "none"), curve("--clip-norm", "2", "1"),
        curve("--loss-average", "lanes", "tokens"), curve("--learning-rate", "0.001", "0.003"),
        curve("--floor", "0.2", "0.1"), curve("--warmup", "3", "50"), curve("--context", "8", "16"),
        model("--layers", "1", "2"), model("--layers", "3", "2"), model("--heads", "1", "2"),
        model("--width", "32", "16"), model("--feed-forward", "48", "32"), model("--norm", "layer", "rms"),
        model("--activation", "gelu", "swiglu"),
        Resumed{{{"--untied", ""}}, 97, "--untied on (it was saved with off)", false},
        model("--experts", "4", "0"),
        Resumed{{{"--experts", "4"}, {"--bias-rate", "0.1"}}, 97, "--experts 4 (it was saved with 0)", false},
        told("--steps", "6", "4"), told("--strategy", "ddp", "zero1"), told("--save-every", "1", "100"),
        told("--tensor-slices", "2", "1"), told("--context-pieces", "2", "1")));

TEST_F(ResumeWithOtherSettings, OfTheTextNeedsTheFlagToo) {
  std::ofstream(folder_->path("other")) << sample_text() << "x";

  const auto refused = resume({{"--text", folder_->path("other")}});
  const auto forced = resume({{"--text", folder_->path("other")}, {"--force-resume", ""}});

  EXPECT_EQ(refused.exit_code, 97) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("--text a text with the hash"), HasSubstr("--force-resume")));
  EXPECT_EQ(forced.exit_code, 0) << forced.output;
  EXPECT_THAT(forced.output, HasSubstr("goes on with --text a text with the hash"));
}

TEST_F(ResumeWithOtherSettings, SaysNothingWhereNothingDiffers) {
  const auto result = resume({{"--steps", "4"}});

  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, Not(HasSubstr("it was saved with")));
}

}  // namespace
}  // namespace troupe::tests
