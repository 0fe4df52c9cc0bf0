#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace troupe::gpu {

// The file in which a rank records, in one epoch, what it does: memory that the rank writes and that others
// read, also when its process is gone. What changes these bytes or their meaning changes kFlightVersion.

constexpr std::array<char, 8> kFlightMagic{'T', 'R', 'O', 'U', 'P', 'E', 'F', 'R'};
constexpr std::uint32_t kFlightVersion = 1;

/// What a rank's trainer is about, in the calls of a session.
enum class FlightPhase : std::uint8_t {
  joining,
  between_steps,
  in_step,
  evaluating,
  restoring,
  leaving,
  left,
};
constexpr std::uint8_t kFlightPhases = 7;

/// Times are nanoseconds of CLOCK_MONOTONIC, 0 where something has not happened.
struct FlightHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t bytes;  ///< of the file
  std::uint64_t epoch;
  std::int32_t rank;
  std::int32_t world;
  std::int64_t pid;
  std::uint64_t process_start;  ///< posix::ProcessIdentity::start_time
  std::uint64_t host;           ///< equal for ranks that see each other's processes
  std::int64_t opened_ns;
  std::int64_t opened_wall_ns;  ///< the same moment, since 1970
  std::array<char, 96> job;
  std::array<char, 64> host_name;

  alignas(64) std::atomic<std::uint32_t> groups;  ///< how many there are
  std::atomic<std::uint32_t> groups_left_out;     ///< that found no room
  std::atomic<std::uint32_t> members_used;        ///< of the table of members
  /// Which of the two below holds, in the lowest bit; grows with each change.
  std::atomic<std::uint32_t> phase_changes;
  struct Phase {
    FlightPhase phase;
    std::int64_t step;  ///< -1: none
    std::int64_t since_ns;
  };
  std::array<Phase, 2> phases;
  std::atomic<std::int64_t> failed_ns;  ///< when the rank heard that its session has failed

  /// What the trainer waits for in the runtime, while it does: an odd number of changes means that the text
  /// changes right now.
  alignas(64) std::atomic<std::uint32_t> wait_changes;
  std::int64_t waits_since_ns;  ///< 0: it does not
  std::array<char, 112> waits_for;
};

enum class FlightState : std::uint8_t {
  empty,
  writing,   ///< the entry is not whole
  posted,    ///< in line on its stream
  launched,  ///< it runs, or waits for other members
  ended,
  failed,
};

/// An operation. One writer at a time: the poster, and from then on the stream.
struct alignas(64) FlightEntry {
  /// FlightState in the low byte, above it the number among all of the group's operations, from 1.
  std::atomic<std::uint64_t> word;
  /// hash64 of what follows up to posted_ns, with the number as its seed.
  std::uint64_t check;
  std::uint64_t sequence;  ///< Turnstile::Ticket: among the collectives, or the messages of one direction
  std::int64_t step;       ///< Operation::step
  std::uint64_t elements;  ///< Signature::elements; where there are counts, their sum
  std::uint64_t bytes;     ///< of the larger of input and output
  std::uint64_t counts;    ///< hash of the counts that all members give alike, 0: there are none
  std::int32_t peer;
  std::int32_t unit;  ///< Operation::unit
  std::uint8_t kind;
  std::uint8_t dtype;
  std::uint8_t reduce;
  std::array<std::uint8_t, 5> unused;
  std::int64_t posted_ns;
  std::atomic<std::int64_t> launched_ns;
  std::atomic<std::int64_t> ended_ns;
  std::atomic<std::uint32_t> code;  ///< of the Error it failed with
  std::atomic<std::int32_t> lost;   ///< a rank that the Error calls missing, plus 1; 0: none
};

struct alignas(64) FlightGroup {
  static constexpr std::size_t kEntries = 64;

  std::array<char, 64> name;
  std::int32_t size;
  std::int32_t index;                             ///< of this rank
  std::uint32_t members_begin;                    ///< in the table of members
  std::uint32_t members_there;                    ///< fewer than size if the table is full
  alignas(64) std::atomic<std::uint64_t> posted;  ///< operations, those without an entry too
  std::atomic<std::uint64_t> without_entry;       ///< which found the place of one that was not over
  std::array<FlightEntry, kEntries> entries;
};

struct FlightFile {
  static constexpr std::size_t kGroups = 24;
  static constexpr std::size_t kMembers = 4096;

  FlightHeader header;
  std::array<std::int32_t, kMembers> members;  ///< ranks
  std::array<FlightGroup, kGroups> groups;
};
static_assert(std::is_trivially_destructible_v<FlightFile>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace troupe::gpu
