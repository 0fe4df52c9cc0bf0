#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/job_failure.hpp"
#include "gpu/collective/shared_memory/layout.hpp"
#include "gpu/collective/shared_memory/segment.hpp"

namespace troupe::gpu {

struct SharedMemoryOptions {
  /// Each member gets twice this size. A larger size means fewer meetings, a smaller one stays in the caches.
  /// 0 chooses: 1 MiB, and less with more than four members.
  std::size_t staging_bytes = 0;
  /// How long a waiting member keeps yielding its core before it sleeps, also where members share cores: a
  /// sleeper must be woken, and may then take the core from the member that wakes it.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

/// The shared memory of a group from one member's view: boxes that members read from each other, meetings
/// that order these reads, channels for messages, and the verdict that ends the group.
///
/// Meetings order all members, and a channel's words its two. Before its meeting m a member writes into its
/// outbox(); after it, all may read each other's inbox() until they arrive at meeting m + 1. Each member has
/// two boxes, used alternately, so data read between two meetings is never data written at the same time.
class Arena {
 public:
  /// Called by all members; returns when all have mapped the segment, whose name is removed by then.
  static core::Result<std::unique_ptr<Arena>> establish(const GroupOptions& group, Rendezvous& rendezvous,
                                                        const SharedMemoryOptions& options);
  ~Arena();

  int index() const { return index_; }
  int size() const { return static_cast<int>(group_.members.size()); }
  const GroupOptions& group() const { return group_; }
  const ArenaLayout& layout() const { return layout_; }

  /// The next seven are for one thread at a time.
  std::byte* outbox() const { return box(index_, meetings_ + 1); }
  const std::byte* inbox(int member) const { return box(member, meetings_); }
  /// The member's outbox, to read what a channel's words say is there.
  const std::byte* outbox_of(int member) const { return box(member, meetings_ + 1); }
  /// At the next meeting. Nothing may be written into the outbox() before the others are there too.
  void arrive();
  core::Result<void> wait_for_others(const OperationDeadline& deadline);
  /// The next operation is to compare the signatures of this meeting.
  void leave_comparison() { owes_comparison_ = true; }
  bool take_comparison() { return std::exchange(owes_comparison_, false); }

  ArenaChannel& channel(int from, int to) const;
  std::byte* channel_buffer(int from, int to, std::uint32_t chunk) const;

  /// Waits until the word's value has reached `target` (they wrap around). Otherwise declares peer_lost if a
  /// member for which `is_awaited` holds died or left, or timeout if the deadline passed. From any thread.
  /// `over`, if given, may end the wait with an Error of its own.
  core::Result<void> await(SharedWord& word, std::uint32_t target, const OperationDeadline& deadline,
                           const std::function<bool(int)>& is_awaited,
                           const std::function<std::optional<core::Error>()>& over = {});

  /// Ends the group for all members with this error, or with the one declared earlier, which is returned.
  core::Error declare(core::Error error);
  /// Like declare(); the other members are told that this one aborted.
  void abort(core::Error reason);
  /// The verdict, if there is one.
  std::optional<core::Error> failure() const;

 private:
  Arena(GroupOptions group, int index, ArenaLayout layout, SharedSegment segment,
        std::chrono::nanoseconds spin);

  core::Result<void> join(JobFailure& failure);
  core::Error declare(core::Error here, const std::string& text_for_others);
  core::Error lost(int member) const;
  core::Error late(const OperationDeadline& deadline, const std::function<bool(int)>& is_awaited) const;
  /// The first member that is awaited and will not arrive.
  std::optional<int> find_lost(const std::function<bool(int)>& is_awaited) const;
  std::uint32_t arrivals_of_all() const;
  bool spin_for(const SharedWord& word, std::uint32_t target) const;
  void wake_all() const;
  std::string describe(int member) const;

  ArenaHeader& header() const;
  ArenaMember& member(int index) const;
  std::byte* box(int member, std::uint32_t meeting) const;

  const GroupOptions group_;
  const int index_;
  const ArenaLayout layout_;
  const SharedSegment segment_;
  const std::chrono::nanoseconds spin_;
  PeerWatch watch_;
  std::uint32_t meetings_ = 0;
  bool owes_comparison_ = false;
  mutable std::mutex mutex_;  // guards own_verdict_
  std::optional<core::Error> own_verdict_;
};

}  // namespace troupe::gpu
