#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/troupe/diagnose/diagnosis.hpp"
#include "core/ids.hpp"
#include "gpu/collective/flight_reading.hpp"

namespace troupe::apps {

/// An operation and its group, in the record of a rank; null if there is none.
struct PlacedOperation {
  const gpu::RecordedGroup* group = nullptr;
  const gpu::RecordedOperation* operation = nullptr;
};

/// Times of all ranks on one clock: nanoseconds since 1970. Those of one host compare exactly.
class Times {
 public:
  explicit Times(const Evidence& evidence);

  std::int64_t wall(const gpu::RecordedRank& rank, std::int64_t ns) const;
  /// When the first operation failed, if one has: what came later explains nothing.
  std::int64_t end() const { return end_; }
  bool has_failed() const { return has_failed_; }
  /// Whether it was posted too late to count.
  bool is_late(const gpu::RecordedRank& rank, const gpu::RecordedOperation& operation) const {
    return wall(rank, operation.posted_ns) > end_;
  }
  double seconds_since(const gpu::RecordedRank& rank, std::int64_t ns) const;

  PlacedOperation last_of(const gpu::RecordedRank& rank) const;
  /// The oldest operation that is not over, else the one that failed first, else the last.
  PlacedOperation oldest_open_of(const gpu::RecordedRank& rank) const;

 private:
  std::map<std::uint64_t, std::int64_t> offsets_;  ///< by host
  std::int64_t looked_ = 0;
  std::int64_t end_ = 0;
  bool has_failed_ = false;
};

/// A rank is, or was until it failed, in an operation that did not end.
struct Wait {
  core::Rank rank{};
  const gpu::RecordedGroup* group = nullptr;
  const gpu::RecordedOperation* operation = nullptr;
  std::int64_t began = 0, ended = 0;  ///< as in Times
  bool is_over = false;
  std::vector<core::Rank> absent;  ///< members that have not posted it
  std::vector<core::Rank> inside;  ///< others that have, and are not through
};

/// Who waits for whom.
class Waits {
 public:
  Waits(const Evidence& evidence, const Times& times);

  const std::vector<Wait>& all() const { return all_; }
  /// Whether the rank itself waits, so that it is not to blame: a process that is stopped or gone does not.
  bool waits(core::Rank rank) const { return waiting_.contains(rank); }
  /// Whether something incriminates this rank besides being waited for: its process is gone or stopped,
  /// or others have lost it.
  bool is_suspect(core::Rank rank) const { return suspects_.contains(rank); }
  bool has_suspects() const { return !suspects_.empty(); }
  /// Whether a rank that waits in both operations has posted that of `first` before.
  bool precedes(const Wait& first, const Wait& second) const;
  /// The ranks that wait in the same operation.
  std::vector<core::Rank> waiting_in(const Wait& wait) const;
  /// Waits each of which is for the rank of the next one, and the last one for the first's; empty: there are
  /// none.
  std::vector<const Wait*> find_circle() const;

 private:
  void add(const RankEvidence& rank, const gpu::RecordedGroup& group,
           const gpu::RecordedOperation& operation);
  enum class Progress : std::uint8_t { absent, inside, through };
  Progress progress(core::Rank member, const Wait& wait) const;
  void find_suspects();
  static bool is_same(const Wait& one, const Wait& other);

  const Evidence& evidence_;
  const Times& times_;
  std::vector<Wait> all_;
  std::set<core::Rank> waiting_;
  std::set<core::Rank> suspects_;
};

}  // namespace troupe::apps
