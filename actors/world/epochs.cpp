#include "actors/world/epochs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "actors/world/leave_signal.hpp"
#include "actors/world/variables.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "posix/folder_watch.hpp"

namespace troupe::actors {

namespace fs = std::filesystem;
using core::Result;

namespace {

/// Nothing else happens in the process meanwhile.
constexpr std::chrono::milliseconds kBetweenLooks{1};
/// For a file in a folder that is not watched.
constexpr std::chrono::milliseconds kBetweenIdleLooks{200};

Result<void> replace(const fs::path& file, const std::string& text) {
  fs::path draft = file;
  draft += ".new";
  std::error_code error;
  if (!(std::ofstream(draft, std::ios::trunc) << text << std::flush)) {
    return core::fail(core::Errc::io, "cannot write {}; is the disk full, or the folder gone?",
                      draft.string());
  }
  fs::rename(draft, file, error);
  if (!error) return {};
  return core::fail(core::Errc::io, "cannot rename {} to {}: {}", draft.string(), file.string(),
                    error.message());
}

/// An epoch and a number of at most `most`.
std::optional<std::pair<std::uint64_t, std::uint64_t>> read_numbers(std::istream& text, std::uint64_t most) {
  std::string epoch, number;
  text >> epoch >> number;
  const auto first = core::parse_number<std::uint64_t>(epoch, {0, std::numeric_limits<std::uint64_t>::max()});
  const auto second = core::parse_number<std::uint64_t>(number, {0, most});
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

core::Result<int> parse_slot(std::string_view text) {
  return core::parse_number<int>(text, {0, std::numeric_limits<int>::max()});
}

}  // namespace

Result<void> announce_epoch(const fs::path& file, const NextEpoch& next) {
  std::string seats;
  for (const Seat& seat : next.seats) seats += fmt::format(" {} {}", seat.slot, seat.node);
  return replace(file,
                 fmt::format("{} {} {}{}\n", next.epoch.value, next.control_port, next.control_host, seats));
}

std::optional<NextEpoch> announced(const fs::path& file) {
  std::ifstream text(file);
  const auto numbers = read_numbers(text, 65535);
  if (!numbers || numbers->second == 0) return std::nullopt;
  NextEpoch next{core::Epoch{numbers->first}, {}, static_cast<std::uint16_t>(numbers->second), {}};
  text >> next.control_host;
  for (std::string first, second; text >> first;) {
    text >> second;
    const auto slot = parse_slot(first);
    const auto node = parse_slot(text ? second : "");
    if (!slot || !node) return std::nullopt;
    next.seats.push_back({*slot, *node});
  }
  if (next.seats.empty()) return std::nullopt;
  return next;
}

namespace {

fs::path request_of(fs::path file) {
  return file += "_request";
}

fs::path memory_of(fs::path file) {
  return file += "_memory";
}

}  // namespace

Result<void> ask_to_wait(const fs::path& file, core::Epoch epoch) {
  return replace(request_of(file), fmt::format("{} 0\n", epoch.value));
}

bool EpochFiles::is_asked_to_wait(core::Epoch epoch) const {
  std::ifstream text(request_of(epoch_));
  const auto numbers = read_numbers(text, 0);
  return numbers && core::Epoch{numbers->first} == epoch;
}

Result<void> declare_membership(const fs::path& file, const Membership& membership) {
  return replace(file, fmt::format("{} {}\n", membership.epoch.value, static_cast<int>(membership.state)));
}

std::optional<Membership> declared(const fs::path& file) {
  std::ifstream text(file);
  const auto numbers = read_numbers(text, static_cast<std::uint64_t>(Membership::State::given_up));
  if (!numbers) return std::nullopt;
  return Membership{core::Epoch{numbers->first}, static_cast<Membership::State>(numbers->second)};
}

std::optional<EpochFiles> EpochFiles::of(const Variables& variables) {
  if (!has_value(variables, "TROUPE_EPOCH_FILE") || !has_value(variables, "TROUPE_MEMBER_FILE")) return {};
  const auto slot = parse_slot(variables("TROUPE_SLOT").value_or(""));
  if (!slot) return {};
  EpochFiles files;
  files.slot_ = *slot;
  files.epoch_ = *variables("TROUPE_EPOCH_FILE");
  files.member_ = *variables("TROUPE_MEMBER_FILE");
  files.failure_ = variables("TROUPE_FAILURE_FILE").value_or("");
  return files;
}

Result<void> EpochFiles::declare_membership(const Membership& membership) const {
  return actors::declare_membership(member_, membership);
}

Result<NextEpoch> EpochFiles::await_epoch_after(core::Epoch over, std::chrono::nanoseconds patience) const {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (true) {
    const auto next = announced(epoch_);
    if (next && next->epoch > over) return *next;
    if (job_ends()) return core::fail(core::Errc::unavailable, "the launcher ends all processes of the job");
    if (LeaveSignal::is_asked()) return core::fail(core::Errc::unavailable, "the job was asked to leave");
    if (std::chrono::steady_clock::now() >= give_up)
      return core::fail(core::Errc::unavailable, "the launcher has begun no epoch after {}", over.value);
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

Result<void> EpochFiles::tell_memory(std::size_t bytes) const {
  return replace(memory_of(epoch_), fmt::format("0 {}\n", bytes));
}

Result<NextEpoch> EpochFiles::await_rank_after(core::Epoch over,
                                               const std::function<void(std::size_t)>& memory_told) const {
  const auto watch = posix::FolderWatch::open(epoch_.parent_path().string());
  std::size_t known = 0;
  while (true) {
    const auto next = announced(epoch_);
    if (next && next->epoch > over && rank_in(*next)) return *next;
    if (job_ends()) return core::fail(core::Errc::unavailable, "the launcher ends all processes of the job");
    if (memory_told) {
      std::ifstream text(memory_of(epoch_));
      const auto told = read_numbers(text, std::numeric_limits<std::size_t>::max());
      if (told && told->second != known) memory_told(known = told->second);
    }
    watch ? watch->wait(kBetweenIdleLooks) : std::this_thread::sleep_for(kBetweenLooks);
  }
}

bool EpochFiles::has_epoch_after(core::Epoch over) const {
  const auto next = announced(epoch_);
  return next && next->epoch > over;
}

bool EpochFiles::is_over(core::Epoch over) const {
  return has_epoch_after(over) || job_ends();
}

std::optional<core::Rank> EpochFiles::rank_in(const NextEpoch& next) const {
  const auto found = std::ranges::find(next.seats, slot_, &Seat::slot);
  if (found == next.seats.end()) return std::nullopt;
  return core::Rank{static_cast<std::int32_t>(found - next.seats.begin())};
}

bool EpochFiles::job_ends() const {
  std::error_code ignored;
  return !failure_.empty() && fs::exists(failure_, ignored);
}

EpochWatch::EpochWatch(std::function<bool()> is_over, std::chrono::nanoseconds between_looks,
                       std::function<void()> over)
    : thread_(
          [is_over = std::move(is_over), between_looks, over = std::move(over)](const std::stop_token& stop) {
            std::mutex mutex;
            std::condition_variable_any stopped;
            while (!is_over()) {
              std::unique_lock lock(mutex);
              stopped.wait_for(lock, stop, between_looks, [] { return false; });
              if (stop.stop_requested()) return;
            }
            over();
          }) {}

}  // namespace troupe::actors
