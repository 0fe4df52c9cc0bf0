#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "apps/troupe/diagnose/records.hpp"
#include "apps/troupe/launch/environment.hpp"
#include "apps/troupe/launch/job.hpp"

namespace troupe::apps {

/// The flight records of this node's ranks: they are in memory while ranks run, with links to them in the
/// job's folder, and are copied there before they go.
class FlightRecords {
 public:
  /// `job` outlives this; its directory is known before begin().
  explicit FlightRecords(const Job& job) : job_(job) {}

  /// A generation begins; those of the one before go.
  void begin(const Generation& generation);
  /// Looks at the processes, by rank, when the first of a generation has failed: before others are ended.
  void look(const std::map<int, std::int64_t>& processes, bool with_threads);
  /// A generation has ended: copies the records where logs are kept, and says in a line or none what held the
  /// job up.
  std::vector<std::string> conclude();

 private:
  void keep() const;
  std::filesystem::path folder() const { return job_.directory / "flight"; }

  const Job& job_;
  std::uint64_t epoch_ = 0;
  std::vector<int> ranks_;  ///< of this node
  bool has_looked_ = false;
  SeenProcesses seen_;
};

}  // namespace troupe::apps
