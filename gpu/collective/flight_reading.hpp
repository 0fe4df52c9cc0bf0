#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/flight_record.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Like FlightEntry.
struct RecordedOperation {
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;
  FlightState state = FlightState::empty;  ///< from posted on
  OperationKind kind = OperationKind::barrier;
  core::DType dtype = core::DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  std::int32_t peer = 0;
  std::uint64_t elements = 0, bytes = 0, counts = 0;
  std::int64_t step = -1;
  std::int32_t unit = -1;
  std::int64_t posted_ns = 0, launched_ns = 0, ended_ns = 0;
  std::optional<core::Errc> code;  ///< of the Error it failed with
  std::optional<core::Rank> lost;  ///< the rank that this Error says is lost

  bool is_message() const { return kind == OperationKind::send || kind == OperationKind::receive; }
};

struct RecordedGroup {
  std::string name;
  int index = 0;
  int size = 0;
  std::vector<core::Rank> members;            ///< fewer than size where there was no room
  std::uint64_t posted = 0;                   ///< all operations of the epoch
  std::uint64_t without_entry = 0;            ///< of these, those that left no trace, though they were posted
  int torn = 0;                               ///< entries that were not whole
  std::vector<RecordedOperation> operations;  ///< the last ones, in the order of posting
};

/// What a rank's record says.
struct RecordedRank {
  core::Rank rank{};
  core::WorldSize world{1};
  core::Epoch epoch{};
  std::string job;
  std::string host_name;
  std::uint64_t host = 0;
  std::int64_t pid = 0;
  std::uint64_t process_start = 0;
  std::int64_t opened_ns = 0, opened_wall_ns = 0;
  FlightPhase phase = FlightPhase::joining;
  std::int64_t phase_step = -1;
  std::int64_t phase_since_ns = 0;
  std::int64_t failed_ns = 0;  ///< when it heard that its session has failed
  std::string waits_for;       ///< empty: the trainer is not waiting in the runtime
  std::int64_t waits_since_ns = 0;
  std::vector<RecordedGroup> groups;
  int groups_left_out = 0;
};

/// Reads the bytes of a record, perhaps of a running process. Errc::corrupt if it is not a whole record,
/// Errc::mismatch for another version. Nothing in the bytes is trusted.
core::Result<RecordedRank> read_flight_record(std::span<const std::byte> bytes);

std::string_view name_of(FlightPhase phase) noexcept;
std::string_view name_of(FlightState state) noexcept;

}  // namespace troupe::gpu
