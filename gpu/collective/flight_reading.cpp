#include "gpu/collective/flight_reading.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "gpu/collective/flight_check.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;

template <std::size_t N>
std::string text_in(const std::array<char, N>& text) {
  std::string found(text.begin(), std::find(text.begin(), text.end(), '\0'));
  for (char& letter : found) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = '?';
  }
  return found;
}

bool is_known(const FlightEntry& entry) {
  return entry.kind <= static_cast<std::uint8_t>(OperationKind::barrier) &&
         entry.dtype <= static_cast<std::uint8_t>(core::DType::boolean) &&
         entry.reduce <= static_cast<std::uint8_t>(ReduceOp::bit_xor);
}

/// None if the entry is not whole.
std::optional<RecordedOperation> operation_in(const FlightEntry& entry, std::size_t place) {
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  const FlightState state = state_in(word);
  const std::uint64_t number = number_in(word);
  if (state < FlightState::posted || state > FlightState::failed || !is_known(entry)) return std::nullopt;
  if (number % FlightGroup::kEntries != place || check_of(entry, number) != entry.check) return std::nullopt;
  RecordedOperation found;
  found.number = number;
  found.sequence = entry.sequence;
  found.state = state;
  found.kind = static_cast<OperationKind>(entry.kind);
  found.dtype = static_cast<core::DType>(entry.dtype);
  found.reduce = static_cast<ReduceOp>(entry.reduce);
  found.peer = entry.peer;
  found.elements = entry.elements;
  found.bytes = entry.bytes;
  found.counts = entry.counts;
  found.step = entry.step;
  found.unit = entry.unit;
  found.posted_ns = entry.posted_ns;
  // Times are written before the state that they belong to.
  const auto reached = [&](const std::atomic<std::int64_t>& time) {
    return std::max(time.load(std::memory_order_relaxed), entry.posted_ns);
  };
  const bool is_over = state == FlightState::ended || state == FlightState::failed;
  const bool has_launched = entry.launched_ns.load(std::memory_order_relaxed) != 0;
  if (state == FlightState::launched || (is_over && has_launched))
    found.launched_ns = reached(entry.launched_ns);
  if (is_over) found.ended_ns = std::max(reached(entry.ended_ns), found.launched_ns);
  if (state != FlightState::failed) return found;
  const std::uint32_t code = entry.code.load(std::memory_order_relaxed);
  found.code = code <= static_cast<std::uint32_t>(Errc::internal) ? static_cast<Errc>(code) : Errc::internal;
  if (const std::int32_t lost = entry.lost.load(std::memory_order_relaxed); lost > 0)
    found.lost = core::Rank{lost - 1};
  return found;
}

RecordedGroup group_in(const FlightFile& file, const FlightGroup& group) {
  RecordedGroup found;
  found.name = text_in(group.name);
  found.index = group.index;
  found.size = group.size;
  const std::size_t begin = std::min<std::size_t>(group.members_begin, FlightFile::kMembers);
  const std::size_t there = std::min<std::size_t>(group.members_there, FlightFile::kMembers - begin);
  for (std::size_t i = begin; i < begin + there; ++i) found.members.push_back({file.members[i]});
  found.posted = group.posted.load(std::memory_order_relaxed);
  found.without_entry = group.without_entry.load(std::memory_order_relaxed);
  for (std::size_t place = 0; place < FlightGroup::kEntries; ++place) {
    const FlightEntry& entry = group.entries[place];
    if (entry.word.load(std::memory_order_relaxed) == 0) continue;
    if (auto operation = operation_in(entry, place)) {
      found.operations.push_back(*operation);
    } else {
      found.torn += 1;
    }
  }
  std::ranges::sort(found.operations, {}, &RecordedOperation::number);
  return found;
}

}  // namespace

core::Result<RecordedRank> read_flight_record(std::span<const std::byte> bytes) {
  constexpr std::size_t kBeginning = offsetof(FlightHeader, epoch);
  if (bytes.size() < kBeginning || std::memcmp(bytes.data(), kFlightMagic.data(), kFlightMagic.size()) != 0)
    return core::fail(Errc::corrupt, "it is not a flight record");
  const auto file = std::make_unique<FlightFile>();
  std::memcpy(static_cast<void*>(file.get()), bytes.data(), std::min(bytes.size(), sizeof(FlightFile)));
  const FlightHeader& header = file->header;
  if (header.version != kFlightVersion || header.bytes != sizeof(FlightFile)) {
    return core::fail(Errc::mismatch,
                      "it is a flight record of version {} with {} bytes, and this troupe reads version {} "
                      "with {}; use the troupe that the job ran with",
                      header.version, header.bytes, kFlightVersion, sizeof(FlightFile));
  }
  if (bytes.size() < sizeof(FlightFile)) {
    return core::fail(Errc::corrupt, "it has {} of the {} bytes of a flight record: it was cut off",
                      bytes.size(), sizeof(FlightFile));
  }
  if (header.rank < 0 || header.world <= header.rank)
    return core::fail(Errc::corrupt, "it belongs to rank {} of {}, which cannot be", header.rank,
                      header.world);
  RecordedRank found;
  found.rank = {header.rank};
  found.world = {header.world};
  found.epoch = core::Epoch{header.epoch};
  found.job = text_in(header.job);
  found.host_name = text_in(header.host_name);
  found.host = header.host;
  found.pid = header.pid;
  found.process_start = header.process_start;
  found.opened_ns = header.opened_ns;
  found.opened_wall_ns = header.opened_wall_ns;
  const auto& phase = header.phases[header.phase_changes.load(std::memory_order_relaxed) % 2];
  if (static_cast<std::uint8_t>(phase.phase) < kFlightPhases) {
    found.phase = phase.phase;
    found.phase_step = phase.step;
    found.phase_since_ns = phase.since_ns;
  }
  found.failed_ns = header.failed_ns.load(std::memory_order_relaxed);
  if (header.wait_changes.load(std::memory_order_relaxed) % 2 == 0 && header.waits_since_ns != 0) {
    found.waits_for = text_in(header.waits_for);
    found.waits_since_ns = header.waits_since_ns;
  }
  found.groups_left_out = static_cast<int>(header.groups_left_out.load(std::memory_order_relaxed));
  const std::size_t groups =
      std::min<std::size_t>(header.groups.load(std::memory_order_relaxed), FlightFile::kGroups);
  for (std::size_t i = 0; i < groups; ++i) found.groups.push_back(group_in(*file, file->groups[i]));
  return found;
}

std::string_view name_of(FlightPhase phase) noexcept {
  static constexpr auto kNames = core::enum_names<FlightPhase>("joining", "between steps", "in a step",
                                                               "evaluating", "restoring", "leaving", "left");
  return kNames[phase];
}

std::string_view name_of(FlightState state) noexcept {
  static constexpr auto kNames =
      core::enum_names<FlightState>("empty", "torn", "posted", "launched", "ended", "failed");
  return kNames[state];
}

}  // namespace troupe::gpu
