#include "actors/world/epochs.hpp"

#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "actors/world/variables.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace fs = std::filesystem;
using core::Result;

namespace {

/// Nothing else happens in the process meanwhile.
constexpr std::chrono::milliseconds kBetweenLooks{1};

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
std::optional<std::pair<std::uint64_t, std::uint64_t>> read_numbers(const fs::path& file,
                                                                    std::uint64_t most) {
  std::ifstream text(file);
  std::string epoch, number;
  text >> epoch >> number;
  const auto first = core::parse_number<std::uint64_t>(epoch, {0, std::numeric_limits<std::uint64_t>::max()});
  const auto second = core::parse_number<std::uint64_t>(number, {0, most});
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

}  // namespace

Result<void> announce_epoch(const fs::path& file, const NextEpoch& next) {
  return replace(file, fmt::format("{} {}\n", next.epoch.value, next.control_port));
}

std::optional<NextEpoch> announced(const fs::path& file) {
  const auto numbers = read_numbers(file, 65535);
  if (!numbers || numbers->second == 0) return std::nullopt;
  return NextEpoch{core::Epoch{numbers->first}, static_cast<std::uint16_t>(numbers->second)};
}

Result<void> declare_membership(const fs::path& file, const Membership& membership) {
  return replace(file, fmt::format("{} {}\n", membership.epoch.value, static_cast<int>(membership.state)));
}

std::optional<Membership> declared(const fs::path& file) {
  const auto numbers = read_numbers(file, static_cast<std::uint64_t>(Membership::State::waiting));
  if (!numbers) return std::nullopt;
  return Membership{core::Epoch{numbers->first}, static_cast<Membership::State>(numbers->second)};
}

std::optional<EpochFiles> EpochFiles::of(const Variables& variables) {
  if (!has_value(variables, "TROUPE_EPOCH_FILE") || !has_value(variables, "TROUPE_MEMBER_FILE")) return {};
  EpochFiles files;
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
    std::error_code ignored;
    if (!failure_.empty() && fs::exists(failure_, ignored))
      return core::fail(core::Errc::unavailable, "the launcher ends all processes of the job");
    if (std::chrono::steady_clock::now() >= give_up)
      return core::fail(core::Errc::unavailable, "the launcher has begun no epoch after {}", over.value);
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace troupe::actors
