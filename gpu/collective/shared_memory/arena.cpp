#include "gpu/collective/shared_memory/arena.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/collective/operations.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Error;

// How often a sleeping member checks for dead members, which cannot wake others.
constexpr auto kLookAround = std::chrono::milliseconds(4);

bool has_reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

}  // namespace

Arena::Arena(GroupOptions group, int index, ArenaLayout layout, SharedSegment segment,
             std::chrono::nanoseconds spin)
    : group_(std::move(group)), index_(index), layout_(layout), segment_(std::move(segment)), spin_(spin) {}

Arena::~Arena() {
  member(index_).has_left = 1;
  wake_all();
}

ArenaHeader& Arena::header() const {
  return *reinterpret_cast<ArenaHeader*>(segment_.view().data);
}

ArenaMember& Arena::member(int index) const {
  return *reinterpret_cast<ArenaMember*>(segment_.view().data +
                                         layout_.member(static_cast<std::size_t>(index)));
}

std::byte* Arena::box(int member, std::uint32_t meeting) const {
  return segment_.view().data + layout_.box(static_cast<std::size_t>(member), meeting % 2);
}

ArenaChannel& Arena::channel(int from, int to) const {
  return *reinterpret_cast<ArenaChannel*>(
      segment_.view().data + layout_.channel(static_cast<std::size_t>(from), static_cast<std::size_t>(to)));
}

std::byte* Arena::channel_buffer(int from, int to, std::uint32_t chunk) const {
  return reinterpret_cast<std::byte*>(&channel(from, to)) + ArenaLayout::align(sizeof(ArenaChannel), 4096) +
         (chunk % 2) * layout_.channel_buffer_bytes();
}

std::uint32_t Arena::arrivals_of_all() const {
  // No member arrives twice before all have arrived once, so the sum shows that all have.
  return meetings_ * static_cast<std::uint32_t>(size());
}

void Arena::arrive() {
  member(index_).meetings.store(++meetings_);
  if (header().arrivals.value.fetch_add(1) + 1 == arrivals_of_all()) wake(header().arrivals);
}

core::Result<void> Arena::wait_for_others(const OperationDeadline& deadline) {
  const auto is_awaited = [this](int peer) { return !has_reached(member(peer).meetings.load(), meetings_); };
  return await(header().arrivals, arrivals_of_all(), deadline, is_awaited);
}

core::Result<void> Arena::await(SharedWord& word, std::uint32_t target, const OperationDeadline& deadline,
                                const std::function<bool(int)>& is_awaited,
                                const std::function<std::optional<Error>()>& over) {
  if (spin_for(word, target)) return {};
  for (;;) {
    const std::uint32_t seen = word.value.load();
    if (has_reached(seen, target)) return {};
    if (auto error = failure()) return tl::unexpected(*std::move(error));
    const auto left = deadline.left();
    if (left == std::chrono::nanoseconds::zero()) {
      return tl::unexpected(declare(late(deadline, is_awaited)));
    }
    sleep_while(word, seen, std::min<std::chrono::nanoseconds>(left, kLookAround));
    if (word.value.load() != seen) continue;
    if (auto error = over ? over() : std::nullopt) return tl::unexpected(declare(*std::move(error)));
    const auto gone = find_lost(is_awaited);
    // Checked again: its last action before it ended may have been what this member waits for.
    if (gone && !has_reached(word.value.load(), target)) return tl::unexpected(declare(lost(*gone)));
  }
}

bool Arena::spin_for(const SharedWord& word, std::uint32_t target) const {
  constexpr int kLooksBetweenClocks = 32;
  if (has_reached(word.value.load(), target)) return true;
  if (spin_ == std::chrono::nanoseconds::zero()) return false;
  const auto end = std::chrono::steady_clock::now() + spin_;
  while (header().verdict.load(std::memory_order_relaxed) == 0) {
    for (int i = 0; i < kLooksBetweenClocks; ++i) {
      if (has_reached(word.value.load(std::memory_order_acquire), target)) return true;
      pause_briefly();
    }
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return false;
}

std::optional<int> Arena::find_lost(const std::function<bool(int)>& is_awaited) const {
  for (const int peer : watch_.find_dead()) {
    if (is_awaited(peer)) return peer;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (member(peer).has_left != 0 && is_awaited(peer)) return peer;
  }
  return std::nullopt;
}

std::string Arena::describe(int member_index) const {
  return fmt::format("rank {}", group_.members[static_cast<std::size_t>(member_index)].value);
}

Error Arena::lost(int peer) const {
  return {Errc::peer_lost,
          fmt::format("group '{}': {} (process {}) {}; abort, and make a new group in the next epoch",
                      group_.name, describe(peer), member(peer).process.pid,
                      member(peer).has_left != 0 ? "left the group" : "died"),
          {group_.members[static_cast<std::size_t>(peer)]}};
}

Error Arena::late(const OperationDeadline& deadline, const std::function<bool(int)>& is_awaited) const {
  std::vector<core::Rank> silent;
  std::string who;
  for (int peer = 0; peer < size(); ++peer) {
    if (!is_awaited(peer)) continue;
    silent.push_back(group_.members[static_cast<std::size_t>(peer)]);
    who += (who.empty() ? "" : ", ") + describe(peer);
  }
  return {Errc::timeout, fmt::format("group '{}': {}: no sign of {}", group_.name, deadline.passed(), who),
          std::move(silent)};
}

Error Arena::declare(Error error) {
  const std::string text = error.message;
  return declare(std::move(error), text);
}

void Arena::abort(Error reason) {
  const std::string text =
      fmt::format("group '{}': {} aborted: {}", group_.name, describe(index_), reason.message);
  (void)declare(std::move(reason), text);
}

Error Arena::declare(Error here, const std::string& text_for_others) {
  std::lock_guard lock(mutex_);
  if (!own_verdict_ && header().verdict.load() == 0) {
    own_verdict_ = here;
    auto& text = member(index_).text;
    text_for_others.copy(text.data(), text.size() - 1);
    const std::uint64_t verdict =
        (static_cast<std::uint64_t>(index_) << 8) | (static_cast<std::uint64_t>(here.code) + 1);
    std::uint64_t none = 0;
    header().verdict.compare_exchange_strong(none, verdict);
    wake_all();
  }
  const std::uint64_t verdict = header().verdict.load();
  if (verdict >> 8 == static_cast<std::uint64_t>(index_)) return *own_verdict_;
  return {static_cast<Errc>((verdict & 0xff) - 1), member(static_cast<int>(verdict >> 8)).text.data()};
}

std::optional<Error> Arena::failure() const {
  const std::uint64_t verdict = header().verdict.load();
  if (verdict == 0) return std::nullopt;
  if (verdict >> 8 == static_cast<std::uint64_t>(index_)) {
    std::lock_guard lock(mutex_);
    return own_verdict_;
  }
  return Error{static_cast<Errc>((verdict & 0xff) - 1), member(static_cast<int>(verdict >> 8)).text.data()};
}

void Arena::wake_all() const {
  wake(header().arrivals);
  wake(header().joined);
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      wake(channel(from, to).written);
      wake(channel(from, to).read);
      wake(channel(from, to).poured);
      wake(channel(from, to).drained);
    }
  }
}

}  // namespace troupe::gpu
