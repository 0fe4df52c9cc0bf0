#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "actors/launch/job_record.hpp"
#include "core/result.hpp"
#include "posix/descriptor.hpp"

namespace troupe::apps {

using actors::JobRecord;

/// The file (--journal) that holds a JobRecord until the job ends. Launchers that use it at the same time are
/// kept apart by a lock on FILE.lock.
class Journal {
 public:
  /// Errc::already_exists while another launcher has it; Errc::corrupt if it is not a journal, Errc::io.
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
