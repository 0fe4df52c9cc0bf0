// How the members of a group set up a shared arena.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/shared_memory/arena.hpp"

namespace troupe::gpu {
namespace {

std::size_t staging_bytes(const SharedMemoryOptions& options, std::size_t members) {
  constexpr std::size_t kTogether = std::size_t{4} << 20;
  constexpr std::size_t kMost = std::size_t{1} << 20;
  constexpr std::size_t kLeast = std::size_t{64} << 10;
  const std::size_t wanted =
      options.staging_bytes > 0 ? options.staging_bytes : std::clamp(kTogether / members, kLeast, kMost);
  return std::max(wanted, members * ArenaLayout::kSlotAlignment);  // each member has a part of it
}

/// Announced by the first member after the segment's name; the others must have the same.
std::string agreement(const GroupOptions& group, const ArenaLayout& layout) {
  std::string text = fmt::format("{} bytes, ranks", layout.total());
  for (const core::Rank rank : group.members) text += fmt::format(" {}", rank.value);
  return text;
}

core::Result<SharedSegment> open_announced(const GroupOptions& group, const ArenaLayout& layout,
                                           Rendezvous& rendezvous, const std::string& key) {
  const std::string text = TRY(rendezvous.get(key, group.deadline));
  const std::string name = text.substr(0, text.find('\n'));
  const std::string found = text.substr(std::min(name.size() + 1, text.size()));
  const std::string expected = agreement(group, layout);
  if (found != expected) {
    return core::fail(core::Errc::mismatch,
                      "group '{}': rank {} expected {}, but rank {} announced {}; all members must give the "
                      "same options",
                      group.name, group.self.value, expected, group.members.front().value, found);
  }
  return SharedSegment::open(name, layout.total());
}

/// Removes the name at the end, whether it succeeded or not.
class NameGuard {
 public:
  explicit NameGuard(std::string name) : name_(std::move(name)) {}
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;
  ~NameGuard() { SharedSegment::unlink(name_); }

 private:
  std::string name_;
};

}  // namespace

core::Result<std::unique_ptr<Arena>> Arena::establish(const GroupOptions& group, Rendezvous& rendezvous,
                                                      const SharedMemoryOptions& options) {
  const int index = TRY(index_of_self(group));
  const ArenaLayout layout{.members = group.members.size(),
                           .staging_bytes = staging_bytes(options, group.members.size())};
  const std::string key = fmt::format("{}/{}/{}/shared_memory", group.job, group.epoch.value, group.name);
  JobFailure failure(rendezvous, key);
  if (index > 0) {
    SharedSegment segment = TRY(open_announced(group, layout, rendezvous, key));
    std::unique_ptr<Arena> arena(new Arena(group, index, layout, std::move(segment), options.spin));
    TRY(arena->join(failure));
    return arena;
  }
  const std::string name = TRY(new_segment_name(group.job, group.epoch.value, group.name));
  SharedSegment segment = TRY(SharedSegment::create(name, layout.total()));
  const NameGuard guard(name);
  std::unique_ptr<Arena> arena(new Arena(group, index, layout, std::move(segment), options.spin));
  TRY(rendezvous.set(key, name + '\n' + agreement(group, layout)));
  TRY(arena->join(failure));
  return arena;
}

core::Result<void> Arena::join(JobFailure& failure) {
  const OperationDeadline deadline("the set-up", group_.deadline);
  member(index_).process = TRY(posix::identify(getpid()));
  header().joined.value.fetch_add(1);
  wake(header().joined);
  TRY(await(
      header().joined, static_cast<std::uint32_t>(size()), deadline,
      [this](int peer) { return member(peer).process.pid == 0; }, [&] { return failure.look(); }));
  std::vector<posix::ProcessIdentity> processes;
  for (int peer = 0; peer < size(); ++peer) processes.push_back(member(peer).process);
  watch_ = TRY(PeerWatch::open(processes));
  return {};
}

}  // namespace troupe::gpu
