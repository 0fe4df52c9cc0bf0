#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "apps/troupe/launch/job.hpp"

namespace troupe::apps {

/// What the launcher knows of one rank whose process ended.
struct RankReport {
  actors::Ending ending;  ///< its `rank` is the job's
  std::string host;       ///< empty in a job of one node
  std::int64_t pid = 0;
  std::vector<std::string> last_error_lines;
  std::string error_message;  ///< from the rank's error file; empty if it wrote none
  std::string meaning;        ///< likely_meaning(), or why its node was lost
};

/// What one generation came to.
struct GenerationReport {
  int generation = 0;
  std::chrono::nanoseconds started{};
  std::vector<RankReport> ranks;     ///< in the order they ended
  std::optional<std::size_t> cause;  ///< index in `ranks`: the failure that explains the others
};

/// One sentence on what a status most likely means and what to look at; empty when it says nothing more.
std::string likely_meaning(actors::ExitStatus status, const OomKills& before, const OomKills& after);

/// For people: the first failure, its last words and its likely meaning, then the other ranks. Lines without
/// prefix. Empty when every rank completed.
std::vector<std::string> describe(const GenerationReport& report);

struct JobReport {
  int exit_code = 0;
  std::string verdict;
  int restarts = 0;
  GenerationReport last;
};
/// job_report.json.
std::string to_json(const Job& job, const JobReport& report);

/// The message in an error file, torch's form or a plain string; empty if there is none.
std::string read_error_file(const std::filesystem::path& path);
/// Writes the error file of a rank that could not do it itself.
void write_error_file(const std::filesystem::path& path, const RankReport& rank);
/// "rank 3", in a job of several nodes "rank 3 on n2"
std::string name_of_rank(int rank, const std::string& host);

}  // namespace troupe::apps
