#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::apps {

/// What the launcher of node 0 writes down of a job, so that another one can go on with it.
struct JobRecord {
  std::string job;
  std::string secret;  ///< hexadecimal, where launchers of one host meet by one of their own; or empty
  std::vector<std::string> program;
  int generation = 0;
  int restarts = 0;
  std::vector<int> ranks;   ///< by node, with which each begins
  std::vector<int> spares;  ///< by node
  std::vector<int> slots;   ///< by rank, of the generation
};

/// The file (--journal) that holds it until the job ends. Launchers that use it at the same time are kept
/// apart by a lock on FILE.lock.
class Journal {
 public:
  /// Errc::already_exists while another launcher has it; Errc::corrupt if it is no journal, Errc::io.
  static core::Result<Journal> open(const std::filesystem::path& file);

  /// What a launcher before this one has left.
  const std::optional<JobRecord>& before() const { return before_; }
  /// Replaces the record, durably.
  core::Result<void> write(const JobRecord& record) const;
  /// The job has ended.
  void remove() const;

 private:
  Journal(std::filesystem::path file, posix::Descriptor lock)
      : file_(std::move(file)), lock_(std::move(lock)) {}

  std::filesystem::path file_;
  posix::Descriptor lock_;
  std::optional<JobRecord> before_;
};

}  // namespace troupe::apps
