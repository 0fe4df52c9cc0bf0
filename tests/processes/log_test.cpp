// What the runtime says in real jobs, as `troupe launch` is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes/gpt_job.hpp"

namespace troupe::tests {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

CommandResult run_with(std::vector<std::string> launch_options, const ScratchFolder& folder) {
  static int runs = 0;
  GptJob job;
  job.ranks = 2;
  job.steps = 2;
  job.launch_options = std::move(launch_options);
  return run_command(gpt_command(job, write_sample_text(folder), folder.path("out" + std::to_string(runs++))),
                     std::chrono::seconds(60));
}

TEST(LogOfAJob, HasLevelInfoUnlessToldOtherwise) {
  const ScratchFolder folder;

  const auto plain = run_with({}, folder);
  const auto quiet = run_with({"--log", "error"}, folder);
  const auto loud = run_with({"--log", "warning,session=debug"}, folder);

  const auto* listens = "info [rank 0 epoch 1 transport] the control network listens at 127.0.0.1 port ";
  EXPECT_THAT(plain.output, AllOf(HasSubstr(listens), Not(HasSubstr("debug ["))));
  EXPECT_THAT(quiet.output, Not(HasSubstr("the control network")));
  EXPECT_THAT(loud.output, AllOf(HasSubstr("debug [rank 1 epoch 1 session] all 2 ranks have joined"),
                                 HasSubstr("debug [rank 0 epoch 1 session] step 1 commits"),
                                 Not(HasSubstr("the control network"))));
}

TEST(LogOfAJob, RefusesWhatItDoesNotKnowBeforeAnythingStarts) {
  const ScratchFolder folder;

  const auto level = run_with({"--log", "loud"}, folder);
  const auto homeless = run_with({"--log-file-mib", "1"}, folder);

  EXPECT_EQ(level.exit_code, 2);
  EXPECT_EQ(level.output,
            "troupe launch: --log: expected a level of trace, debug, info, warning, error, off, found "
            "\"loud\"\n");
  EXPECT_EQ(homeless.exit_code, 2);
  EXPECT_THAT(homeless.output, HasSubstr("--log-dir"));
}

TEST(LogOfAJob, IsJsonInAFilePerRankOnRequest) {
  const ScratchFolder folder;

  const auto result = run_with(
      {"--log-json", "--log", "info,session=debug", "--log-file-mib", "1", "--log-dir", folder.path("logs")},
      folder);

  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::istringstream output(result.output);
  std::set<std::string> speakers;
  for (std::string line; std::getline(output, line);) {
    if (!line.starts_with("{\"time\"")) continue;
    const auto event = nlohmann::json::parse(line);
    speakers.insert(event.contains("rank") ? "rank " + std::to_string(event["rank"].get<int>()) : "launcher");
  }
  EXPECT_EQ(speakers, (std::set<std::string>{"launcher", "rank 0", "rank 1"}));
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path("logs"))) {
    const auto name = entry.path().filename().string();
    if (name != "rank_0.log" && name != "rank_1.log" && name != "launcher.log") continue;
    std::ifstream file(entry.path());
    std::string line;
    ASSERT_TRUE(std::getline(file, line)) << name;
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    files += 1;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace troupe::tests
