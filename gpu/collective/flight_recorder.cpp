#include "gpu/collective/flight_recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <span>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/collective/flight_check.hpp"
#include "gpu/collective/operations.hpp"
#include "posix/descriptor.hpp"
#include "posix/process_identity.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

/// Writes as much of the text as there is room for, and a zero.
template <std::size_t N>
void put(std::string_view text, std::array<char, N>& into) {
  const std::size_t length = text.copy(into.data(), N - 1);
  into[length] = '\0';
}

std::uint64_t hash_of(const PartCounts& counts) {
  if (counts.empty()) return 0;
  const auto each = counts.is_even() ? std::vector{counts[0], counts.size()} : counts.each();
  return core::hash64(std::as_bytes(std::span(each))) | 1;
}

/// What all members give alike: in an exchange nothing.
std::uint64_t counts_of(const Operation& operation) {
  if (operation.kind == OperationKind::reduce_scatter) return hash_of(operation.output_counts);
  if (operation.kind == OperationKind::all_gather) return hash_of(operation.input_counts);
  return 0;
}

std::uint64_t elements_of(const Operation& operation) {
  if (operation.kind == OperationKind::all_to_all) return 0;
  const std::size_t bytes = std::max(operation.input.bytes, operation.output.bytes);
  return bytes / core::size_of(operation.dtype);
}

}  // namespace

core::Result<std::shared_ptr<FlightRecorder>> FlightRecorder::open(const Options& options) {
  const auto refused = [&](int error) {
    return core::fail(Errc::io, "cannot make the flight record {}: {}; see how much room /dev/shm has",
                      options.path, std::strerror(error));
  };
  ::unlink(options.path.c_str());
  const posix::Descriptor file(::open(options.path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!file.is_open()) return refused(errno);
  // Without the reservation a full /dev/shm would end the process with SIGBUS.
  int refusal = 0;
  do {
    refusal = ::posix_fallocate(file.get(), 0, sizeof(FlightFile));
  } while (refusal == EINTR);
  if (refusal != 0) {
    ::unlink(options.path.c_str());
    return refused(refusal);
  }
  void* const memory =
      ::mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (memory == MAP_FAILED) return refused(errno);
  // The file is new, so all is zero.
  auto* const made = std::launder(static_cast<FlightFile*>(memory));
  FlightHeader& header = made->header;
  header.version = kFlightVersion;
  header.bytes = sizeof(FlightFile);
  header.epoch = options.epoch.value;
  header.rank = options.rank.value;
  header.world = options.world.value;
  header.pid = ::getpid();
  if (const auto self = posix::identify(::getpid())) header.process_start = self->start_time;
  header.host = options.host;
  header.opened_ns = now_ns();
  header.opened_wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  put(options.job, header.job);
  put(options.host_name, header.host_name);
  std::shared_ptr<FlightRecorder> recorder(new FlightRecorder(made));
  recorder->enter(FlightPhase::joining, core::Step{-1});
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = kFlightMagic;
  return recorder;
}

FlightRecorder::~FlightRecorder() {
  ::munmap(&file_, sizeof(FlightFile));
}

void FlightRecorder::enter(FlightPhase phase, core::Step step) {
  FlightHeader& header = file_.header;
  const std::uint32_t change = header.phase_changes.load(std::memory_order_relaxed) + 1;
  header.phases[change % 2] = {phase, step.value, now_ns()};
  header.phase_changes.store(change, std::memory_order_release);
}

void FlightRecorder::fail() {
  std::int64_t never = 0;
  file_.header.failed_ns.compare_exchange_strong(never, now_ns(), std::memory_order_relaxed);
}

void FlightRecorder::wait_begins(std::string_view what) {
  FlightHeader& header = file_.header;
  const std::uint32_t changes = header.wait_changes.load(std::memory_order_relaxed);
  header.wait_changes.store(changes + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  put(what, header.waits_for);
  header.waits_since_ns = now_ns();
  header.wait_changes.store(changes + 2, std::memory_order_release);
}

void FlightRecorder::wait_ends() {
  FlightHeader& header = file_.header;
  const std::uint32_t changes = header.wait_changes.load(std::memory_order_relaxed);
  header.wait_changes.store(changes + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  header.waits_since_ns = 0;
  header.wait_changes.store(changes + 2, std::memory_order_release);
}

FlightGroup* FlightRecorder::add(const GroupOptions& options, int index) {
  const std::lock_guard lock(adding_);
  FlightHeader& header = file_.header;
  const std::uint32_t place = header.groups.load(std::memory_order_relaxed);
  if (place == FlightFile::kGroups) {
    header.groups_left_out.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  FlightGroup& group = file_.groups[place];
  put(options.name, group.name);
  group.size = static_cast<std::int32_t>(options.members.size());
  group.index = index;
  const std::uint32_t used = header.members_used.load(std::memory_order_relaxed);
  const auto there =
      static_cast<std::uint32_t>(std::min<std::size_t>(options.members.size(), FlightFile::kMembers - used));
  group.members_begin = used;
  group.members_there = there;
  for (std::uint32_t i = 0; i < there; ++i) file_.members[used + i] = options.members[i].value;
  header.members_used.store(used + there, std::memory_order_relaxed);
  header.groups.store(place + 1, std::memory_order_release);
  return &group;
}

FlightTrack::FlightTrack(const GroupOptions& options, int index)
    : recorder_(options.recorder), group_(recorder_ ? recorder_->add(options, index) : nullptr) {}

FlightEntry* FlightTrack::posted(const Operation& operation, std::uint64_t sequence) const {
  if (group_ == nullptr) return nullptr;
  const std::uint64_t number = group_->posted.fetch_add(1, std::memory_order_relaxed) + 1;
  FlightEntry& entry = group_->entries[number % FlightGroup::kEntries];
  std::uint64_t before = entry.word.load(std::memory_order_acquire);
  const FlightState state = state_in(before);
  const bool is_free =
      state == FlightState::empty || state == FlightState::ended || state == FlightState::failed;
  if (!is_free || !entry.word.compare_exchange_strong(before, word_of(number, FlightState::writing),
                                                      std::memory_order_relaxed)) {
    group_->without_entry.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  std::atomic_thread_fence(std::memory_order_release);
  entry.sequence = sequence;
  entry.step = operation.step.value;
  entry.elements = elements_of(operation);
  entry.bytes = std::max(operation.input.bytes, operation.output.bytes);
  entry.counts = counts_of(operation);
  entry.peer = operation.peer;
  entry.unit = operation.unit;
  entry.kind = static_cast<std::uint8_t>(operation.kind);
  entry.dtype = static_cast<std::uint8_t>(operation.dtype);
  entry.reduce = static_cast<std::uint8_t>(operation.reduce);
  entry.unused = {};
  entry.posted_ns = now_ns();
  entry.launched_ns.store(0, std::memory_order_relaxed);
  entry.ended_ns.store(0, std::memory_order_relaxed);
  entry.code.store(0, std::memory_order_relaxed);
  entry.lost.store(0, std::memory_order_relaxed);
  entry.check = check_of(entry, number);
  entry.word.store(word_of(number, FlightState::posted), std::memory_order_release);
  return &entry;
}

void FlightTrack::launched(FlightEntry* entry) {
  if (entry == nullptr) return;
  entry->launched_ns.store(now_ns(), std::memory_order_relaxed);
  const std::uint64_t word = entry->word.load(std::memory_order_relaxed);
  entry->word.store(word_of(number_in(word), FlightState::launched), std::memory_order_release);
}

void FlightTrack::ended(FlightEntry* entry, const core::Result<void>& result) {
  if (entry == nullptr) return;
  entry->ended_ns.store(now_ns(), std::memory_order_relaxed);
  if (!result) {
    const core::Error& error = result.error();
    entry->code.store(static_cast<std::uint32_t>(error.code), std::memory_order_relaxed);
    const bool is_lost = error.code == Errc::peer_lost && error.missing.size() == 1;
    entry->lost.store(is_lost ? error.missing.front().value + 1 : 0, std::memory_order_relaxed);
  }
  const std::uint64_t word = entry->word.load(std::memory_order_relaxed);
  entry->word.store(word_of(number_in(word), result ? FlightState::ended : FlightState::failed),
                    std::memory_order_release);
}

}  // namespace troupe::gpu
