// Every option of gpt: what is said of ranks that have another value of it, and of a run that goes on from a
// checkpoint with another one. An option that is not here fails the test; docs/agreement.md has the table.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line/command_line.hpp"
#include "apps/gpt/options/options.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps::gpt {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What the ranks of a job may have of an option.
enum class Among : std::uint8_t {
  alike,   ///< compared when they join
  own,     ///< each its own
  no_job,  ///< with it there are no ranks
};

struct OptionRow {
  std::string option;
  std::string value;  ///< another than that of `base`, or than the default; empty for a flag
  ChangeWeight resumed = ChangeWeight::none;
  Among among = Among::alike;
  std::string base = {};  ///< options that both have
  std::string as = {};    ///< what is compared, if it has another name

  const std::string& compared_as() const { return as.empty() ? option : as; }
};

using W = ChangeWeight;
constexpr const char* kMixture = "--experts 4";
constexpr const char* kStages = "--pipeline-parallel 2";
constexpr const char* kGpu = "--device cuda";

const std::vector<OptionRow> kAllOptions{
    {"--text", "OTHER_TEXT", W::curve},
    {"--evaluation-text", "OTHER_TEXT", W::told, Among::alike, "--evaluation-text TEXT"},
    {"--preset", "demo", W::model, Among::alike, "", "--width"},
    {"--model", "MODEL", W::none},
    {"--key", "rope_theta=5e5", W::model, Among::alike, "--model MODEL", "rotary angles"},
    {"--ignore", "unheard_of", W::none, Among::own, "--model MODEL"},
    {"--weights-from", "elsewhere", W::none},
    {"--export", "elsewhere", W::none},
    {"--export-dtype", "bf16", W::none},
    {"--layers", "3", W::model},
    {"--heads", "4", W::model},
    {"--width", "32", W::model},
    {"--feed-forward", "48", W::model},
    {"--norm", "layer", W::model},
    {"--activation", "gelu", W::model},
    {"--untied", "", W::model},
    {"--experts", "4", W::model},
    {"--experts-per-token", "1", W::model, Among::alike, kMixture},
    {"--expert-feed-forward", "16", W::model, Among::alike, kMixture},
    {"--bias-rate", "0.1", W::model, Among::alike, kMixture},
    {"--context", "8", W::curve},
    {"--balance", "0.02", W::curve, Among::alike, kMixture},
    {"--z-loss", "0.1", W::curve, Among::alike, kMixture},
    {"--capacity-factor", "1.5", W::curve, Among::alike, kMixture},
    {"--batch", "3", W::curve},
    {"--lanes", "2", W::curve},
    {"--microbatches", "2", W::curve},
    {"--seed", "2", W::curve},
    {"--numerics", "fast", W::curve},
    {"--wire-dtype", "bf16", W::curve},
    {"--gather-dtype", "f8_e4m3", W::curve, Among::alike, kGpu},
    {"--dtype", "f32", W::curve, Among::alike, kGpu},
    {"--tf32", "", W::curve, Among::alike, "--device cuda --dtype f32"},
    {"--optimizer", "lion", W::curve},
    {"--weight-decay", "0.2", W::curve},
    {"--beta2", "0.9", W::curve},
    {"--loss-scale", "8", W::curve},
    {"--loss-average", "lanes", W::curve},
    {"--clip-norm", "2", W::curve},
    {"--average-in-collective", "", W::curve, Among::alike, "--numerics fast"},
    {"--learning-rate", "0.001", W::curve},
    {"--floor", "0.2", W::curve},
    {"--warmup", "3", W::curve},
    {"--steps", "6", W::told},
    {"--strategy", "ddp", W::told},
    {"--tensor-parallel", "2", W::told},
    {"--tensor-slices", "2", W::told},
    {"--context-parallel", "2", W::told},
    {"--context-pieces", "2", W::told},
    {"--pipeline-parallel", "2", W::told},
    {"--expert-parallel", "2", W::told, Among::alike, kMixture},
    {"--expert-tensor-parallel", "2", W::told, Among::alike, kMixture},
    {"--save-every", "1", W::told},
    {"--device", "cuda", W::told, Among::alike, "--dtype f32"},
    {"--initial-deviation", "0.03", W::none},
    {"--sequence-parallel", "", W::none, Among::alike, "--tensor-parallel 2"},
    {"--pipeline-schedule", "gpipe", W::none, Among::alike, kStages},
    {"--pipeline-chunks", "2", W::none, Among::alike,
     "--pipeline-parallel 2 --pipeline-schedule interleaved"},
    {"--optimizer-instances", "2", W::none},
    {"--keep-instances", "", W::none},
    {"--gathered-units", "1", W::none},
    {"--bucket-elements", "4000", W::none},
    {"--no-overlap", "", W::none},
    {"--large-gradient-factor", "10", W::none},
    {"--collectives", "tcp", W::none},
    {"--register-memory", "", W::none},
    {"--recompute", "", W::none},
    {"--keep-last", "2", W::none},
    {"--keep-every", "2", W::none},
    {"--compare-replicas-every", "2", W::none},
    {"--local-every", "2", W::none},
    {"--replication-factor", "2", W::none},
    {"--replication-jump", "2", W::none},
    {"--evaluate-every", "2", W::none},
    {"--evaluation-batches", "2", W::none},
    {"--sample-bytes", "5", W::none},
    {"--prompt", "The", W::none},
    {"--temperature", "0.5", W::none},
    {"--top-k", "20", W::none},
    {"--resume", "never", W::none},
    {"--force-resume", "", W::none},
    {"--checkpoints", "elsewhere", W::none},
    {"--local-checkpoints", "elsewhere", W::none},
    {"--output", "elsewhere", W::none, Among::own},
    {"--trace", "", W::none, Among::own},
    {"--trace-steps", "1", W::none, Among::own},
    {"--staging-mib", "8", W::none, Among::own},
    {"--peak-tera-flops", "3", W::none, Among::own},
    {"--local", "", W::none, Among::no_job},
    {"--evaluate-only", "", W::none, Among::no_job, "--local"},
    {"--print-tokens", "", W::none, Among::no_job, "--local"},
};

class SettingsTable : public testing::Test {
 protected:
  SettingsTable() {
    for (const auto* name : {"TEXT", "OTHER_TEXT"}) {
      std::ofstream out(folder_.path(name));
      for (std::uint64_t i = 0; i < 2000; ++i)
        out << static_cast<char>('a' + core::CounterRandom(1, name).below(26, i));
    }
    const auto ones = [](std::size_t, core::ElementRange, std::span<float> values) {
      std::fill(values.begin(), values.end(), 1.0F);
      return core::Result<void>{};
    };
    EXPECT_TRUE(export_model(preset("tiny").value(), ones, {.directory = folder_.path("MODEL")}));
  }

  Options parsed(const std::string& line) const {
    Options options;
    CLI::App app;
    take_last_of_repeated(app);
    add_options(app, options);
    std::string with_paths = "--text TEXT " + line;
    for (const auto* name : {"OTHER_TEXT", "MODEL"}) {
      for (auto at = with_paths.find(name); at != std::string::npos; at = with_paths.find(name, at + 99))
        with_paths.replace(at, std::string(name).size(), folder_.path(name));
    }
    for (auto at = with_paths.find(" TEXT"); at != std::string::npos; at = with_paths.find(" TEXT"))
      with_paths.replace(at, 5, " " + folder_.path("TEXT"));
    app.parse(with_paths, false);
    return options;
  }

  /// The settings of a run with these options, up to where it would join.
  core::Result<Settings> settings(const std::string& line) const {
    auto options = parsed(line);
    if (options.model.empty() && options.preset.empty()) options.preset = "tiny";
    // Opening the checkpoint is not what this is about.
    const auto weights_from = std::exchange(options.weights_from, "");
    const auto origin = TRY(origin_of(options));
    const auto run = TRY(run_options(options, origin.get()));
    options.weights_from = weights_from;
    auto all = settings_of(options, run);
    auto codec = TRY(codec_of(run.origin));
    add_settings(all, TRY(Corpus::open(files_of(run), codec)), {2});
    return all;
  }

  static std::string with(const OptionRow& row) {
    const auto base = row.option == "--text" || row.option == "--evaluation-text" ? "" : row.base;
    return fmt::format("{} {} {}", base, row.option, row.value);
  }

  tests::ScratchFolder folder_;
};

std::vector<std::string> names_of_options() {
  Options options;
  CLI::App app;
  add_options(app, options);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name() != "--help") names.push_back(option->get_name());
  }
  return names;
}

TEST(SettingsTableOf, EveryOptionHasARowHere) {
  std::vector<std::string> rows;
  for (const auto& row : kAllOptions) rows.push_back(row.option);

  EXPECT_THAT(rows, testing::UnorderedElementsAreArray(names_of_options()))
      << "decide what ranks and checkpoints with another value of the option come to, in option_table.cpp";
}

TEST_F(SettingsTable, RanksThatDifferInAnOptionAreTold) {
  for (const auto& row : kAllOptions) {
    if (row.among == Among::no_job) continue;
    const auto first = settings(row.base), second = settings(with(row));
    ASSERT_TRUE(first) << row.option << ": " << first.error().message;
    ASSERT_TRUE(second) << row.option << ": " << second.error().message;
    std::set<std::string> differing;
    const auto ours = compared(*first), theirs = compared(*second);
    for (const auto& setting : theirs) {
      if (std::find(ours.begin(), ours.end(), setting) == ours.end()) differing.insert(setting.first);
    }

    if (row.among == Among::own) {
      EXPECT_TRUE(differing.empty()) << row.option << " differs in " << fmt::format("{}", differing);
    } else {
      EXPECT_TRUE(differing.contains(row.compared_as()))
          << row.option << " in " << fmt::format("{}", differing);
    }
  }
}

TEST_F(SettingsTable, ResumeWithAnotherValueSaysItsConsequence) {
  for (const auto& row : kAllOptions) {
    if (row.among == Among::no_job) continue;
    const core::Value saved = core::Value::Map{{"settings", kept(settings(row.base).value())}};
    const auto now = settings(with(row)).value();

    const auto plain = compare_with_checkpoint(saved, now, false, false);
    const auto forced = compare_with_checkpoint(saved, now, true, false);

    const auto text = plain ? *plain : plain.error().message;
    SCOPED_TRACE(row.option + ": " + text);
    const bool is_silent = row.resumed == W::none;
    EXPECT_EQ(plain.has_value(), is_silent || row.resumed == W::told);
    EXPECT_EQ(forced.has_value(), row.resumed != W::model);
    if (is_silent) {
      EXPECT_EQ(text, "");
    } else {
      EXPECT_THAT(text, AllOf(HasSubstr(row.compared_as()), HasSubstr("(it was saved with ")));
    }
    if (row.resumed != W::curve) continue;
    EXPECT_THAT(text, HasSubstr("--force-resume"));
    EXPECT_THAT(*forced, HasSubstr("goes on with "));
  }
}

/// The lines of docs/agreement.md.
std::vector<std::string> lines_of_table() {
  const std::vector<std::pair<std::pair<Among, W>, std::string>> kinds{
      {{Among::alike, W::model}, "refused | exit code 97"},
      {{Among::alike, W::curve}, "refused | exit code 97; with `--force-resume` a line says it"},
      {{Among::alike, W::told}, "refused | a line says it"},
      {{Among::alike, W::none}, "refused | nothing is said"},
      {{Among::own, W::none}, "each its own | nothing is said"},
      {{Among::no_job, W::none}, "no job: one process | no checkpoint"}};
  std::vector<std::string> lines;
  for (const auto& [kind, text] : kinds) {
    std::vector<std::string> names;
    for (const auto& row : kAllOptions) {
      if (row.among == kind.first && row.resumed == kind.second) names.push_back("`" + row.option + "`");
    }
    lines.push_back(fmt::format("| {} | {} |", fmt::join(names, ", "), text));
  }
  return lines;
}

TEST(SettingsTableOf, TheDocumentationIsThis) {
  std::ifstream file(TROUPE_DOCS_DIRECTORY "/agreement.md");
  const std::string document{std::istreambuf_iterator<char>(file), {}};

  for (const auto& line : lines_of_table())
    EXPECT_TRUE(document.find(line + "\n") != std::string::npos) << "docs/agreement.md lacks the line\n"
                                                                 << line;
}

}  // namespace
}  // namespace troupe::apps::gpt
