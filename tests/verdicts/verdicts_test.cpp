// What is said of real jobs in which one rank misbehaves, drawn by seeds: wayward.cpp is the trainer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/verdicts/scene.hpp"

namespace troupe::tests {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

std::string job_folder(const ScratchFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.is_directory()) return entry.path();
  }
  return folder.path();
}

std::vector<std::string> launch(const Scene& scene, std::uint64_t seed, const ScratchFolder& folder) {
  return {TROUPE_BINARY, "launch",       "--nproc-per-node",  std::to_string(scene.ranks),
          "--log-dir",   folder.path(),  "--term-timeout",    "1",
          "--",          WAYWARD_BINARY, std::to_string(seed)};
}

/// The verdict that the launcher's folder gives, and the exit code of asking for it.
Json diagnose(const std::string& folder, int exit_code, std::vector<std::string> more = {}) {
  std::vector<std::string> command{TROUPE_BINARY, "diagnose", "--json", folder};
  command.insert(command.end(), more.begin(), more.end());
  const auto said = run_command(command, seconds(20));
  EXPECT_EQ(said.exit_code, exit_code) << said.output;
  auto verdict = Json::parse(said.output, nullptr, false);
  return verdict.is_object() ? verdict : Json::object();
}

/// Whether the rank has not posted this operation when it misbehaves, and somebody may wait for it there.
bool is_missed(const Scene& scene, const Json& operation) {
  const int step = operation["step"];
  const auto group = operation["group"].get<std::string>();
  if (!group.starts_with("trainer")) {
    // The session's own come after the trainer's. A process that does not run leaves those of the step before
    // as they are, which go on beside the trainer.
    const bool is_idle = scene.way == Way::stops || scene.way == Way::exits;
    return step == scene.step || (is_idle && step == scene.step - 1);
  }
  for (std::size_t place = scene.place; place < scene.operations.size(); ++place) {
    const auto& of = scene.operations[place].group;
    const auto& members = scene.members(of, scene.rank);
    const auto name = fmt::format("trainer-{}-{}", scene.groups[of].first, members.front().value);
    if (group == name && operation["number"] == scene.number(scene.step, place)) return step == scene.step;
  }
  return false;
}

bool is_the_one(const Scene& scene, const Json& operation) {
  const auto& of = scene.operations[scene.place].group;
  const auto& members = scene.members(of, scene.rank);
  return operation["group"] == fmt::format("trainer-{}-{}", scene.groups[of].first, members.front().value) &&
         operation["number"] == scene.number(scene.step, scene.place) && operation["step"] == scene.step;
}

/// What is not as it must be in a scene's verdict; empty if it is right.
std::string wrong_with(const Scene& scene, const Json& verdict) {
  const auto ranks = verdict.value("ranks", std::vector<int>{});
  const auto is = [&](const char* name) { return verdict.value("verdict", "") == name; };
  if (std::ranges::count(ranks, scene.rank) != 1) return "the rank is not named";
  const auto& operation = verdict["operation"];
  // One that ends may do so before anybody has come to wait for it.
  if (scene.way == Way::exits && operation.is_null() && is("lost") && ranks.size() == 1) return "";
  // Others may wait for it to make a group, in the job's store, and nobody has posted anything.
  const auto& table = verdict["table"];
  const bool is_first = std::ranges::all_of(table, [](const Json& row) { return row["operation"] == ""; });
  const bool hangs = scene.way == Way::stops || scene.way == Way::loops;
  if (hangs && operation.is_null() && is_first && is("hang") && ranks.size() == 1) return "";
  if (!operation.is_object()) return "no operation is named";
  switch (scene.way) {
    case Way::stops:
    case Way::loops:
      if (!is("hang") || ranks.size() != 1) return "expected a hang of this rank alone";
      return is_missed(scene, operation) ? "" : "expected an operation that it did not post";
    case Way::exits:
      if (!is("lost") || ranks.size() != 1) return "expected the loss of this rank alone";
      return is_missed(scene, operation) ? "" : "expected an operation that it did not post";
    case Way::other_order:
      if (is("circle")) return "";
      break;
    default:
      break;
  }
  if (!is("mismatch")) return "expected a mismatch";
  // Nobody knows which of two is right, and others may have come no further.
  const auto others = verdict["sentence"].get<std::string>().find(", but ranks ");
  if (ranks.size() != (others == std::string::npos ? 2U : 1U)) return "others are named too";
  return is_the_one(scene, operation) ? "" : "expected the operation of this place";
}

/// A hundred of them take TROUPE_VERDICTS=100.
TEST(Verdicts, OfRealJobsNameTheRankAndTheOperation) {
  const auto count = number_in_environment("TROUPE_VERDICTS", 7);
  const auto first = number_in_environment("TROUPE_VERDICTS_FROM", 0);
  std::map<bool, std::pair<int, int>> right;  // of ranks that do not come, and of those that post otherwise
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Scene scene = draw_scene(seed);
    const ScratchFolder folder;
    const auto ended = run_command(launch(scene, seed, folder), seconds(60));
    const auto verdict = diagnose(job_folder(folder), 1);
    const auto wrong = wrong_with(scene, verdict);
    const auto said = "by the flight records: " + verdict.value("sentence", "nothing");
    const bool is_told = ended.output.find(said) != std::string::npos;
    auto& [are_right, of_all] = right[scene.way >= Way::counts_wrong];
    of_all += 1;
    if (wrong.empty() && is_told) are_right += 1;
    EXPECT_TRUE(wrong.empty() && is_told)
        << fmt::format("seed {}: way {} of rank {} of {} over {}, step {}, place {}: {}\n", seed,
                       static_cast<int>(scene.way), scene.rank, scene.ranks,
                       scene.over_tcp ? "tcp" : "shared memory", scene.step, scene.place,
                       wrong.empty() ? "the launcher says something else" : wrong)
        << verdict.dump(1) << "\n"
        << ended.output;
  }
  for (const auto& [differs, counts] : right)
    fmt::print("{} of {} verdicts of {} are right\n", counts.first, counts.second,
               differs ? "operations that differ" : "ranks that do not come");
}

/// While ranks train, and when they have, nobody is named.
TEST(Verdicts, OfAHealthyJobNameNobody) {
  constexpr std::uint64_t kSeed = 4;
  const ScratchFolder folder;
  auto command = launch(draw_scene(kSeed), kSeed, folder);
  command.emplace_back("400");
  int looked = 0;
  const auto ended = run_command(command, seconds(60), [&] {
    const auto job = job_folder(folder);
    if (looked == 5 || !std::filesystem::exists(job + "/flight")) return;
    const auto said = run_command({TROUPE_BINARY, "diagnose", job}, seconds(20));
    looked += said.exit_code == 3 ? 0 : 1;  // 3: no rank has begun
    EXPECT_THAT(said.exit_code, testing::AnyOf(0, 3)) << said.output;
  });

  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_GT(looked, 0);
  EXPECT_THAT(ended.output, testing::Not(testing::HasSubstr("flight records")));
  EXPECT_FALSE(std::filesystem::exists(job_folder(folder) + "/flight")) << "nothing has failed";
}

}  // namespace
}  // namespace troupe::tests
