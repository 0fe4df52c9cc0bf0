#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/troupe/diagnose/diagnosis.hpp"

namespace troupe::apps {

/// What was found where somebody looked for flight records.
struct FoundRecords {
  Evidence evidence;                  ///< of the newest epoch, without patience
  std::vector<std::string> problems;  ///< sentences: files that could not be read, ranks without a record
};

/// Reads the records in folders, and in their subfolders "flight", or those of running ranks: `places` are
/// folders, or the value of TROUPE_FLIGHT_RECORD. It says what processes on this host do now, and what
/// a launcher has written in the folder about others (write_facts()).
FoundRecords find_records(const std::vector<std::filesystem::path>& places);

/// The path of a rank's record; `prefix` is TROUPE_FLIGHT_RECORD.
std::filesystem::path record_path(const std::filesystem::path& prefix, std::uint64_t epoch, int rank);

/// What a launcher saw of its ranks' processes in an epoch, for find_records().
struct SeenProcesses {
  std::uint64_t epoch = 0;
  std::int64_t wall_ns = 0;
  std::map<int, ProcessFacts> ranks;
};
void write_facts(const std::filesystem::path& folder, const SeenProcesses& seen);

/// Now, in nanoseconds since 1970.
std::int64_t wall_now();

}  // namespace troupe::apps
