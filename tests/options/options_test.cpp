#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/exit_status.hpp"
#include "apps/gpt/options/options.hpp"
#include "apps/troupe/commands.hpp"
#include "apps/troupe/launch/options.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;

struct Argument {
  std::string name;
  bool is_flag = false;
  bool is_positional = false;
};

/// A command as the programs themselves describe it.
struct Command {
  std::string name;
  std::vector<std::string> words;  ///< that start it
  std::vector<Argument> arguments;
};

void PrintTo(const Command& command, std::ostream* out) {
  *out << command.name;
}

using Given = std::vector<std::pair<std::string, std::string>>;

/// What a command needs besides the option on trial, so that a good value ends soon. '#' is another number
/// for each run.
const std::map<std::string, Given> kGiven = {
    {"gpt",
     {{"--text", "text"},
      {"--preset", "tiny"},
      {"--steps", "1"},
      {"--lanes", "1"},
      {"--batch", "1"},
      {"--evaluation-batches", "1"},
      {"--sample-bytes", "1"}}},
    {"troupe diagnose", {{"PLACE", "saved"}}},
    {"troupe plan layout", {{"--sizes", "5,6"}}},
    {"troupe plan program", {{"--units", "2"}}},
    {"troupe plan capacity", {{"--units", "2"}}},
    {"troupe plan goodput", {{"--ranks", "8"}, {"--days", "1"}, {"--runs", "1"}}},
    {"troupe simulate", {{"--ranks", "2"}, {"--steps", "1"}}},
    {"troupe bench step",
     {{"--ranks", "1"},
      {"--steps", "1"},
      {"--layers", "1"},
      {"--layer-elements", "64"},
      {"--layer-milliseconds", "0"}}},
    {"troupe bench checkpoint", {{"--mib", "1"}, {"--staging-mib", "1"}, {"--repeats", "1"}}},
    {"troupe bench load", {{"--mib", "1"}, {"--ranks", "1"}, {"--repeats", "1"}}},
    {"troupe bench moe", {{"--ranks", "1"}, {"--tokens", "4"}, {"--width", "4"}, {"--repeats", "1"}}},
    {"troupe bench kernels", {{"--mib", "1"}, {"--repeats", "1"}}},
    {"troupe bench collectives", {{"--ranks", "1"}, {"--bytes", "4"}, {"--operations", "all_reduce"}}},
    {"troupe checkpoint show", {{"PATH", "saved/step_00000007"}}},
    {"troupe checkpoint verify", {{"PATH", "saved"}}},
    {"troupe checkpoint diff", {{"A", "saved/step_00000007"}, {"B", "saved/step_00000007"}}},
    {"troupe checkpoint reshard", {{"PATH", "saved/step_00000007"}, {"OUT", "out#"}, {"--mesh", "1"}}},
    {"troupe checkpoint import", {{"FROM", "model.safetensors"}, {"OUT", "out#"}}},
    {"troupe checkpoint export", {{"PATH", "saved/step_00000007"}, {"OUT", "out#"}, {"--to", "dcp"}}},
    {"troupe checkpoint prune", {{"DIR", "saved"}, {"--keep-last", "1"}}},
    {"troupe convert config", {{"FILE", "config.json"}, {"--to", "megatron"}}},
    {"troupe convert weights",
     {{"IN", "model"}, {"OUT", "out#"}, {"--from", "huggingface"}, {"--to", "megatron"}}},
    {"troupe launch", {{"--standalone", ""}, {"--nproc-per-node", "1"}}},
};

std::vector<std::string> hostile_values() {
  return {"0",   "-1",    "2147483647", "9223372036854775807",    "99999999999999999999", "1e300", "nan",
          "inf", "words", "",           std::string(100'000, 'x')};
}

std::vector<Argument> arguments_of(const CLI::App& app) {
  std::vector<Argument> arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option == app.get_version_ptr()) continue;
    arguments.push_back({option->get_name(), option->get_expected_min() == 0, option->get_positional()});
  }
  return arguments;
}

void add_commands_below(CLI::App& app, const Command& above, std::vector<Command>& commands) {
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  Command here = above;
  here.arguments = arguments_of(app);
  if (below.empty()) commands.push_back(here);
  for (CLI::App* sub : below) {
    Command next = above;
    next.name += " " + sub->get_name();
    next.words.push_back(sub->get_name());
    add_commands_below(*sub, next, commands);
  }
}

std::vector<Command> all_commands() {
  std::vector<Command> commands;
  int ignored = 0;
  CLI::App troupe;
  add_commands(troupe, ignored);
  add_commands_below(troupe, {"troupe", {TROUPE_BINARY}, {}}, commands);
  // It reads its flags by itself.
  LaunchOptions launch_options;
  CLI::App launch;
  add_launch_options(launch, launch_options);
  std::erase_if(commands, [](const Command& command) { return command.name == "troupe launch"; });
  commands.push_back({"troupe launch", {TROUPE_BINARY, "launch"}, arguments_of(launch)});
  gpt::Options gpt_options;
  CLI::App trainer;
  gpt::add_options(trainer, gpt_options);
  commands.push_back({"gpt", {GPT_BINARY}, arguments_of(trainer)});
  commands.push_back({"gpt --local", {GPT_BINARY, "--local"}, arguments_of(trainer)});
  return commands;
}

class Options : public testing::TestWithParam<Command> {
 protected:
  Options() : home_(fs::current_path()) {
    std::string pattern = (fs::temp_directory_path() / "troupe-options-XXXXXX").string();
    scratch_ = ::mkdtemp(pattern.data());
    const fs::path golden = fs::path(TROUPE_GOLDEN_DIRECTORY) / "checkpoint";
    const char* step = "step_00000007";
    fs::create_directory(scratch_ / "saved");
    fs::copy(golden / step, scratch_ / "saved" / step, fs::copy_options::recursive);
    fs::copy(golden / "foreign.safetensors", scratch_ / "model.safetensors");
    fs::copy(fs::path(TROUPE_GOLDEN_DIRECTORY) / "models" / "Qwen3-8B.json", scratch_ / "config.json");
    std::ofstream text(scratch_ / "text");
    for (int line = 0; line < 500; ++line) text << "and the word was with light. ";
    fs::current_path(scratch_);  // Some values name files that are to be written.
  }
  ~Options() override {
    fs::current_path(home_);
    std::error_code ignored;
    fs::remove_all(scratch_, ignored);
  }

  tests::CommandResult run(const Argument& tried, const std::string& value) {
    const auto& command = GetParam();
    const auto known = kGiven.find(command.name == "gpt --local" ? "gpt" : command.name);
    const Given given = known == kGiven.end() ? Given{} : known->second;
    std::vector<std::string> words = command.words;
    if (tried.is_flag) words.push_back(tried.name + "=" + value);
    if (!tried.is_flag && !tried.is_positional) words.insert(words.end(), {tried.name, value});
    for (const auto& [name, text] : given) {
      if (name == tried.name || !name.starts_with("-")) continue;
      words.push_back(name);
      if (!text.empty()) words.push_back(text);
    }
    for (const Argument& argument : command.arguments) {
      if (!argument.is_positional) continue;
      const auto found = std::find_if(given.begin(), given.end(),
                                      [&](const auto& one) { return one.first == argument.name; });
      if (argument.name != tried.name && found == given.end()) continue;  // may be left out
      std::string text = argument.name == tried.name ? value : found->second;
      if (const auto place = text.find('#'); place < text.size() && argument.name != tried.name)
        text.replace(place, 1, std::to_string(runs_));
      words.push_back(text);
    }
    if (command.name == "troupe launch") words.insert(words.end(), {"--", "/bin/true"});
    ++runs_;
    return tests::run_command(words, std::chrono::seconds(30));
  }

  /// The directory that a good value of the option would have been for is not there.
  bool is_about_what_was_given(const std::string& message) const {
    const auto known = kGiven.find(GetParam().name);
    if (known == kGiven.end()) return false;
    return std::any_of(known->second.begin(), known->second.end(), [&](const auto& given) {
      return !given.first.starts_with("-") && message.find(": " + given.second + " has no ") != message.npos;
    });
  }

 private:
  fs::path home_;
  fs::path scratch_;
  int runs_ = 0;
};

/// "--bucket-size", or in words, as those below the command line say it: "bucket size".
bool names(const std::string& message, const std::string& option) {
  std::string words = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  std::replace(words.begin(), words.end(), '-', ' ');
  return message.find(option) != std::string::npos || message.find(words) != std::string::npos;
}

TEST_P(Options, AnyValueEndsInAResultOrOneSentence) {
  ASSERT_FALSE(GetParam().arguments.empty());
  for (const Argument& argument : GetParam().arguments) {
    for (const std::string& value : hostile_values()) {
      const auto result = run(argument, value);

      const std::string shown = GetParam().name + " " + argument.name + " '" + value.substr(0, 30) +
                                "' ends with " + std::to_string(result.exit_code) + ": " +
                                result.output.substr(0, 500);
      const int nothing_found = GetParam().name == "troupe diagnose" ? 3 : 0;
      EXPECT_THAT(result.exit_code, testing::AnyOf(0, 1, 2, nothing_found, actors::kExitNoCheckpoint))
          << shown;
      if (result.exit_code != 0) {
        EXPECT_NE(result.output, "") << shown;
      }
      if (result.exit_code != 2) continue;
      EXPECT_EQ(result.output.find('\n'), result.output.size() - 1) << shown;
      EXPECT_TRUE(argument.is_positional || names(result.output, argument.name) ||
                  is_about_what_was_given(result.output))
          << shown;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCommand, Options, testing::ValuesIn(all_commands()), [](const auto& of) {
  std::string name;
  for (const char c : of.param.name) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(CommandLine, UnreadableArgumentsEndWithTwoAndOneSentence) {
  const std::vector<std::vector<std::string>> lines = {
      {TROUPE_BINARY},
      {TROUPE_BINARY, "word"},
      {TROUPE_BINARY, "--word"},
      {TROUPE_BINARY, "plan"},
      {TROUPE_BINARY, "plan", "program", "--word"},
      {TROUPE_BINARY, "launch", "--word"},
      {TROUPE_BINARY, "checkpoint", "show"},
      {GPT_BINARY},
      {GPT_BINARY, "--word"},
      {GPT_BINARY, "--text"},
      {GPT_BINARY, "--text", "text", "word"},
  };
  for (const auto& line : lines) {
    const auto result = tests::run_command(line, std::chrono::seconds(30));

    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_EQ(result.output.find('\n'), result.output.size() - 1) << result.output;
  }
  for (const char* program : {TROUPE_BINARY, GPT_BINARY}) {
    const auto result = tests::run_command({program, "--help"}, std::chrono::seconds(30));

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, testing::HasSubstr("--help"));
  }
}

TEST(CommandLine, NamesWhatItDoesNotKnowInItsOrder) {
  const auto said = [](std::vector<std::string> words) {
    return tests::run_command(words, std::chrono::seconds(30)).output;
  };

  EXPECT_THAT(said({TROUPE_BINARY, "launhc", "script"}),
              testing::StartsWith("troupe: 'launhc' is not a command; expected launch, plan, "));
  EXPECT_THAT(said({TROUPE_BINARY, "plan", "capcity", "--json"}),
              testing::StartsWith("troupe plan: 'capcity' is not a command; expected layout, program, "));
  EXPECT_EQ(said({TROUPE_BINARY, "plan", "capacity", "a", "b", "--word"}),
            "troupe plan capacity: not expected: a b --word; see `troupe plan capacity --help`\n");
}

TEST(CommandLine, TheLastOfAnOptionGivenTwiceCounts) {
  const auto printed = [](std::vector<std::string> words) {
    const auto result = tests::run_command(words, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };

  EXPECT_EQ(printed({TROUPE_BINARY, "plan", "layout", "--dp", "4", "--sizes", "5,6", "--json", "--dp", "2",
                     "--json"}),
            printed({TROUPE_BINARY, "plan", "layout", "--sizes", "5,6", "--json", "--dp", "2"}));
  EXPECT_EQ(printed({TROUPE_BINARY, "plan", "layout", "--sizes", "5", "--sizes", "6,7", "--dp", "2"}),
            printed({TROUPE_BINARY, "plan", "layout", "--sizes", "5,6,7", "--dp", "2"}))
      << "a list keeps all of its values";
  EXPECT_THAT(printed({TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node", "2", "--nproc-per-node",
                       "1", "--", "/bin/sh", "-c", "echo world of $WORLD_SIZE"}),
              testing::HasSubstr("world of 1\n"));
  const auto gpt = tests::run_command(
      {GPT_BINARY, "--text", "/nonexistent/first", "--text", "/nonexistent/last"}, std::chrono::seconds(30));
  EXPECT_THAT(gpt.output, testing::HasSubstr("/nonexistent/last"));
}

/// A device that is always full.
TEST(CommandLine, AResultThatCannotBeWrittenIsAFailure) {
  for (const std::string arguments :
       {"plan layout --sizes 5,6 --json", "plan schedule --stages 64 --microbatches 512 --json",
        "doctor --json", "simulate --steps 1 --json", "--help"}) {
    const auto result =
        tests::run_command({"/bin/sh", "-c", std::string(TROUPE_BINARY) + " " + arguments + " >/dev/full"},
                           std::chrono::seconds(30));

    EXPECT_EQ(result.exit_code, 2) << arguments << ": " << result.output;
    EXPECT_THAT(result.output, testing::HasSubstr("cannot write to standard output: No space left"));
  }
}

TEST(Bench, WithoutATemporaryDirectoryTouchesNothing) {
  const tests::ScratchFolder folder;
  fs::create_directories(folder.path("checkpoints/step_00000001"));
  std::ofstream(folder.path("plain")) << "kept";
  const std::string in_folder = "cd '" + folder.path("") + "' && ";
  for (const std::string command : {"bench checkpoint --mib 1 --repeats 1 --directory /proc",
                                    "bench load --mib 1 --repeats 1 --ranks 1 --directory /proc"}) {
    const auto result = tests::run_command({"/bin/sh", "-c", in_folder + TROUPE_BINARY + " " + command},
                                           std::chrono::seconds(60));

    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, testing::HasSubstr("cannot make a directory in /proc"));
  }
  const auto lost = tests::run_command(
      {"/usr/bin/env", "TMPDIR=/nonexistent", TROUPE_BINARY, "bench", "checkpoint", "--mib", "1"},
      std::chrono::seconds(60));
  EXPECT_EQ(lost.exit_code, 1) << lost.output;
  EXPECT_THAT(lost.output, testing::HasSubstr("set TMPDIR"));

  EXPECT_EQ(fs::file_size(folder.path("plain")), 4U);
  EXPECT_TRUE(fs::exists(folder.path("checkpoints/step_00000001")));
  EXPECT_FALSE(fs::exists(folder.path("checkpoints/latest_checkpointed_iteration.txt")));
}

/// An empty entry in a program's RUNPATH stands for the current folder.
TEST(Programs, LoadNoLibraryOfTheirWorkingDirectory) {
  const tests::ScratchFolder folder;
  for (const char* library : {"libc.so.6", "libm.so.6", "libstdc++.so.6"})
    std::ofstream(folder.path(library)) << "no library";
  for (const std::string program : {TROUPE_BINARY, GPT_BINARY}) {
    const auto result = tests::run_command({"/usr/bin/env", "-C", folder.path(), program, "--help"},
                                           std::chrono::seconds(30));

    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

}  // namespace
}  // namespace troupe::apps
