#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/flight_record.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Records what a rank does in one epoch in a file that outlives the process: the last operations of each
/// group, what the trainer is about, and what it waits for. Recording takes no lock and makes no system call.
/// The file belongs in memory (/dev/shm): a write to a page of a disk's file may wait for the disk.
class FlightRecorder {
 public:
  struct Options {
    std::string path;  ///< a file there is replaced
    std::string job;
    core::Epoch epoch{};
    core::Rank rank{};
    core::WorldSize world{1};
    std::uint64_t host = 0;
    std::string host_name;
  };
  static core::Result<std::shared_ptr<FlightRecorder>> open(const Options& options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// By the trainer's thread. `step` is -1 for none.
  void enter(FlightPhase phase, core::Step step);
  /// The rank has heard that its session has failed. From any thread; the first call counts.
  void fail();
  /// By the trainer's thread, before and after it waits in the runtime.
  void wait_begins(std::string_view what);
  void wait_ends();

 private:
  friend class FlightTrack;
  explicit FlightRecorder(FlightFile* file) : file_(*file) {}
  FlightGroup* add(const GroupOptions& options, int index);

  FlightFile& file_;
  std::mutex adding_;  // guards the tables of groups and members
};

/// The record of one group's operations. All functions may be called from any thread; with nothing to record
/// to they do nothing. `entry` is what posted() returned, perhaps null.
class FlightTrack {
 public:
  FlightTrack() = default;
  /// Records to GroupOptions::recorder.
  FlightTrack(const GroupOptions& options, int index);

  /// `operation` is prepared, and `sequence` its number as in FlightEntry. No operation loses its entry
  /// before it has ended; others then have none.
  FlightEntry* posted(const Operation& operation, std::uint64_t sequence) const;
  static void launched(FlightEntry* entry);
  static void ended(FlightEntry* entry, const core::Result<void>& result);

 private:
  std::shared_ptr<FlightRecorder> recorder_;  // shared by the groups of a rank and its session
  FlightGroup* group_ = nullptr;
};

}  // namespace troupe::gpu
