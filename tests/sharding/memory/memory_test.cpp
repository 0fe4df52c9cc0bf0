// What sharding saves, as the operating system counts it: a limit under which only the sharded job fits, and
// the most that a process had resident.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;

constexpr double kMib = 1024.0 * 1024.0;

struct Job {
  std::string strategy = "zero3";
  int ranks = 4;
  std::string numerics = "fast";
  std::string collectives = "shared_memory";
  std::vector<std::string> options;
};

/// What a rank left behind: numbers by name, and the Error with which it ended.
struct RankResult {
  std::map<std::string, double> numbers;
  std::string error;

  double planned() const {
    return numbers.at("planned_at_rest") + numbers.at("planned_pools") + numbers.at("planned_staging");
  }
};

RankResult read_result(const std::string& file) {
  RankResult result;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "error") {
      result.error = line;
    } else {
      words >> result.numbers[name];
    }
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const Job& job) {
  return out << job.strategy << " on " << job.ranks << ", " << job.numerics << ", " << job.collectives;
}

struct Outcome {
  int exit_code = -1;
  std::string output;
  std::vector<RankResult> ranks;
};

Outcome run(const Job& job) {
  const tests::ScratchFolder folder;
  // One heap for all threads: otherwise each of them maps addresses of its own, how many is chance.
  // AddressSanitizer would keep what was freed for a while, and that counts as resident.
  std::vector<std::string> command = {"/usr/bin/env", "MALLOC_ARENA_MAX=1",
                                      "ASAN_OPTIONS=quarantine_size_mb=0:thread_local_quarantine_size_kb=0"};
  if (job.ranks > 1) {
    command.insert(command.end(), {TROUPE_BINARY, "launch", "--standalone", "--nproc-per-node",
                                   std::to_string(job.ranks), "--"});
  }
  command.insert(command.end(), {LAYERS_BINARY, "--strategy", job.strategy, "--numerics", job.numerics,
                                 "--collectives", job.collectives, "--output", folder.path()});
  command.insert(command.end(), job.options.begin(), job.options.end());
  const auto ended = tests::run_command(command, std::chrono::seconds(120));
  Outcome outcome{ended.exit_code, ended.output, {}};
  for (int rank = 0; rank < job.ranks; ++rank) {
    outcome.ranks.push_back(read_result(folder.path(fmt::format("rank_{}", rank))));
  }
  return outcome;
}

/// The same job with a model of nearly nothing: what a process has for other reasons.
Outcome run_empty(Job job) {
  job.options.insert(job.options.end(), {"--rows", "4", "--columns", "4"});
  return run(job);
}

struct Limit {
  std::string option;   ///< of the trainer
  std::string counted;  ///< the number that it bounds
  std::string collectives;

  friend std::ostream& operator<<(std::ostream& out, const Limit& of) {
    return out << of.counted << "_" << of.collectives;
  }
};

class MemoryLimit : public testing::TestWithParam<Limit> {
 protected:
  /// Layers enough that zero1 lacks memory for them, not for the threads that come after.
  Job job(const std::string& strategy, std::vector<std::string> options = {}) const {
    options.insert(options.end(), {"--layers", "24"});
    return {strategy, 4, "fast", GetParam().collectives, std::move(options)};
  }
  /// What ZeRO-3 needs, a twentieth more, and a little for what threads take by chance.
  std::vector<std::string> enough_for_zero3() const {
    const auto empty = run_empty(job("zero3"));
    const auto full = run(job("zero3"));
    EXPECT_EQ(empty.exit_code, 0) << empty.output;
    EXPECT_EQ(full.exit_code, 0) << full.output;
    double most = 0;
    for (const auto& rank : empty.ranks) most = std::max(most, rank.numbers.at(GetParam().counted));
    const double bytes = most + 1.05 * full.ranks[0].planned() + 16 * kMib;
    return {GetParam().option, fmt::format("{:.0f}", bytes)};
  }
};

// Covers unit-43.
TEST_P(MemoryLimit, ThatReplicasExceedIsEnoughForZero3) {
  const auto limit = enough_for_zero3();

  const auto zero3 = run(job("zero3", limit));

  ASSERT_EQ(zero3.exit_code, 0) << zero3.output;
  for (const auto& rank : zero3.ranks) EXPECT_EQ(rank.numbers.at("committed"), 2);
  for (const std::string strategy : {"ddp", "zero1"}) {
    const auto outcome = run(job(strategy, limit));

    EXPECT_EQ(outcome.exit_code, 1) << strategy << outcome.output;
    for (const auto& rank : outcome.ranks) {
      EXPECT_THAT(rank.error, HasSubstr(fmt::format("of 4 with {} needs ", strategy))) << outcome.output;
      EXPECT_THAT(rank.error, HasSubstr("but the operating system refused them"));
    }
  }
}

TEST_P(MemoryLimit, OfOneRankIsToldToTheOthers) {
  auto limit = enough_for_zero3();
  limit.insert(limit.end(), {"--limited-rank", "2"});

  const auto outcome = run(job("ddp", limit));

  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  for (const auto& rank : outcome.ranks) {
    EXPECT_THAT(rank.error, HasSubstr("rank 2 of 4 with ddp needs 768.0 MiB")) << outcome.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, MemoryLimit,
                         testing::Values(Limit{"--data-limit", "data", "shared_memory"},
                                         Limit{"--data-limit", "data", "tcp"},
                                         Limit{"--address-limit", "addresses", "shared_memory"}),
                         testing::PrintToStringParamName());

class PeakMemory : public testing::TestWithParam<Job> {};

// Covers unit-39.
TEST_P(PeakMemory, IsWhatThePlanSaysWithinATwentieth) {
  const auto empty = run_empty(GetParam());
  const auto full = run(GetParam());

  ASSERT_EQ(empty.exit_code, 0) << empty.output;
  ASSERT_EQ(full.exit_code, 0) << full.output;
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const auto& found = full.ranks[static_cast<std::size_t>(rank)];
    const double planned = found.planned();
    const double peak =
        found.numbers.at("peak") - empty.ranks[static_cast<std::size_t>(rank)].numbers.at("peak");
    std::printf("| %s | %s | %s | %d | %d | %.1f | %.1f | %+.1f %% |\n", GetParam().strategy.c_str(),
                GetParam().numerics.c_str(), GetParam().collectives.c_str(), GetParam().ranks, rank,
                planned / kMib, peak / kMib, 100 * (peak / planned - 1));
    EXPECT_LE(peak, 1.05 * planned) << "rank " << rank;
    EXPECT_GE(peak, 0.95 * planned) << "rank " << rank;
  }
}

// Covers unit-38, unit-40, unit-42.
TEST_P(PeakMemory, AtRestIsTheShardsAndAMebibyte) {
  const auto outcome = run(GetParam());

  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  constexpr double kParameters = 12.0 * 1024 * 2048 * 4;  // bytes, and as much for gradients and each moment
  for (const auto& rank : outcome.ranks) {
    const auto& numbers = rank.numbers;
    EXPECT_EQ(numbers.at("taken_pools"), numbers.at("planned_pools"));
    EXPECT_EQ(numbers.at("taken_staging"), numbers.at("planned_staging"));
    EXPECT_GE(numbers.at("taken_at_rest"), numbers.at("planned_at_rest"));
    EXPECT_LE(numbers.at("taken_at_rest"), numbers.at("planned_at_rest") + kMib);
    if (GetParam().strategy != "zero3" || GetParam().numerics != "fast") continue;
    EXPECT_EQ(numbers.at("planned_at_rest"), 4 * kParameters / GetParam().ranks);
    EXPECT_EQ(numbers.at("planned_pools"), 2 * 2 * kParameters / 12) << "two layers, and their gradients";
  }
}

std::vector<Job> jobs() {
  std::vector<Job> found;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
    found.push_back({strategy, 1, "fast", "shared_memory", {}});
    for (const char* numerics : {"fast", "ordered"}) {
      for (const char* collectives : {"shared_memory", "tcp"}) {
        found.push_back({strategy, 4, numerics, collectives, {}});
      }
    }
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Of, PeakMemory, testing::ValuesIn(jobs()), [](const auto& each) {
  const auto& job = each.param;
  return fmt::format("{}On{}_{}_{}", job.strategy, job.ranks, job.numerics, job.collectives);
});

// Covers unit-41.
TEST(SessionMemory, IsReturnedWhenTheSessionEnds) {
  for (const int ranks : {1, 4}) {
    const auto outcome = run({"zero3", ranks, "fast", "shared_memory", {"--sessions", "3"}});
    const auto empty = run_empty({"zero3", ranks, "fast", "shared_memory", {"--sessions", "3"}});

    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& found = outcome.ranks[static_cast<std::size_t>(rank)].numbers;
      const auto& bare = empty.ranks[static_cast<std::size_t>(rank)].numbers;
      EXPECT_GT(found.at("peak"), found.at("resident_after_1") + 100 * kMib);
      EXPECT_LT(found.at("resident_after_1"), bare.at("resident_after_1") + 2 * kMib) << "rank " << rank;
      EXPECT_LT(found.at("resident_after_3"), found.at("resident_after_1") + 2 * kMib) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace troupe
