#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/troupe/diagnose/process_facts.hpp"
#include "core/ids.hpp"
#include "gpu/collective/flight_reading.hpp"

namespace troupe::apps {

/// A rank as it was found.
struct RankEvidence {
  gpu::RecordedRank record;
  std::optional<ProcessFacts> process;  ///< unknown: of another host, or too late
};

/// All that is known of one epoch of a job.
struct Evidence {
  std::vector<RankEvidence> ranks;      ///< by rank, each once
  std::int64_t looked_wall_ns = 0;      ///< when the processes were looked at, in nanoseconds since 1970
  std::chrono::nanoseconds patience{};  ///< while nothing has failed, nobody who waits less is worth a word
};

/// What explains that a job does not go on.
struct Diagnosis {
  enum class Kind : std::uint8_t {
    nothing,    ///< nobody waits, or nobody for long
    hang,       ///< ranks wait for one that does not come
    mismatch,   ///< ranks have posted operations that differ
    circle,     ///< ranks wait for each other
    lost,       ///< the process of a rank is gone
    elsewhere,  ///< those that are waited for have no record here
  };
  /// The operation in question.
  struct Subject {
    std::string group;
    gpu::RecordedOperation operation;
  };
  struct Row {
    core::Rank rank{};
    std::string process;    ///< "runs", "stopped", ...; empty: unknown
    std::string phase;      ///< "in step 5"
    std::string waits_for;  ///< of the trainer
    std::string operation;  ///< the oldest that is not over, or the last one
    std::string state;      ///< of the operation
    double seconds = 0;     ///< since the state began
  };

  Kind kind = Kind::nothing;
  std::vector<core::Rank> culprits;
  std::vector<core::Rank> waiting;
  std::string sentence;
  std::optional<Subject> subject;
  std::vector<Row> rows;
};

Diagnosis diagnose(const Evidence& evidence);

std::string_view name_of(Diagnosis::Kind kind) noexcept;
/// "rank 2", "ranks 0, 1 and 3"
std::string names_of(const std::vector<core::Rank>& ranks);
/// "all_reduce 17 of group dp-0-0 of step 5, unit 3"
std::string describe(const gpu::RecordedOperation& operation, const std::string& group);

}  // namespace troupe::apps
