#include "actors/chaos/monitor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/planes/checkpoint/directory.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  // The finaliser of MurmurHash3, which is a bijection for each b.
  std::uint64_t x = a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2));
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

std::uint64_t digest(const ChaosState& state) {
  std::uint64_t hash = 0;
  for (const auto each : state) hash = mixed(hash, each);
  return hash;
}

}  // namespace

ChaosState lane_gradient(const ChaosState& state, std::int64_t step, int lane) {
  const auto all = digest(state);
  ChaosState gradient;
  for (const auto each : state)
    gradient.push_back(mixed(
        mixed(each, all), static_cast<std::uint64_t>(step) * 1'000'003U + static_cast<std::uint64_t>(lane)));
  return gradient;
}

ChaosState state_after(const ChaosState& state, const std::vector<ChaosState>& lanes) {
  ChaosState next = state;
  for (std::size_t i = 0; i < next.size(); ++i) {
    for (const auto& lane : lanes) next[i] = mixed(next[i], lane[i]);
  }
  return next;
}

void ChaosCoverage::add(const ChaosCoverage& other) {
  for (std::size_t kind = 0; kind < kChaosKinds; ++kind) {
    for (std::size_t phase = 0; phase < kChaosPhases; ++phase) met[kind][phase] += other.met[kind][phase];
  }
}

std::vector<std::string> ChaosCoverage::lacking() const {
  std::vector<std::string> found;
  for (std::size_t kind = 0; kind < kChaosKinds; ++kind) {
    for (std::size_t phase = 0; phase < kChaosPhases; ++phase) {
      // Nothing is saved yet.
      const bool cannot_be = static_cast<ChaosKind>(kind) == ChaosKind::rotten_disk &&
                             static_cast<ChaosPhase>(phase) == ChaosPhase::starting;
      if (met[kind][phase] == 0 && !cannot_be)
        found.push_back(fmt::format("{} in {}", name_of(static_cast<ChaosKind>(kind)),
                                    name_of(static_cast<ChaosPhase>(phase))));
    }
  }
  return found;
}

ChaosMonitor::ChaosMonitor(const ChaosSetup& setup, std::function<std::chrono::nanoseconds()> now)
    : setup_(setup), now_(std::move(now)) {
  undisturbed_.push_back(ChaosState(kChaosElements));
  for (std::size_t i = 0; i < kChaosElements; ++i) undisturbed_[0][i] = mixed(i, 7);
}

void ChaosMonitor::violate(std::string_view invariant, const std::string& what) {
  constexpr std::size_t kMost = 20;
  if (violations_.size() >= kMost) return;
  violations_.push_back(
      fmt::format("{}: {} ({:.6f} s)", invariant, what, std::chrono::duration<double>(now_()).count()));
}

const ChaosState& ChaosMonitor::undisturbed(std::int64_t steps) {
  while (static_cast<std::int64_t>(undisturbed_.size()) <= steps) {
    const auto step = static_cast<std::int64_t>(undisturbed_.size()) - 1;
    std::vector<ChaosState> lanes;
    for (int lane = 0; lane < setup_.lanes; ++lane)
      lanes.push_back(lane_gradient(undisturbed_.back(), step, lane));
    undisturbed_.push_back(state_after(undisturbed_.back(), lanes));
  }
  return undisturbed_[static_cast<std::size_t>(steps)];
}

void ChaosMonitor::announced(const NextEpoch& next) {
  if (next.epoch <= newest_)
    violate("S1", fmt::format("epoch {} is announced after epoch {}", next.epoch.value, newest_.value));
  newest_ = std::max(newest_, next.epoch);
  newest_view_ = next;
  views_.emplace(next.epoch.value, next);
}

void ChaosMonitor::entered(const NextEpoch& next) {
  const auto known = views_.find(next.epoch.value);
  if (known == views_.end() || !(known->second == next))
    violate("S1",
            fmt::format("a process enters epoch {} with other ranks than were announced", next.epoch.value));
}

void ChaosMonitor::heard(core::Epoch own, core::Epoch from) {
  if (own == from) return;
  violate("S2", fmt::format("a rank of epoch {} takes what was said in epoch {}", own.value, from.value));
}

void ChaosMonitor::put_together(const std::vector<int>& holders, std::int64_t over) {
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (holders[i] < 0)
      violate("S3",
              fmt::format("nobody has part {} of the state after {} steps that ranks go on with", i, over));
  }
}

void ChaosMonitor::played(std::int64_t step, const std::vector<int>& lanes) {
  std::vector<int> times(static_cast<std::size_t>(setup_.lanes));
  for (const int lane : lanes) ++times[static_cast<std::size_t>(lane)];
  for (std::size_t lane = 0; lane < times.size(); ++lane) {
    if (times[lane] != 1)
      violate("S8", fmt::format("step {} takes the data of lane {} {} times", step, lane, times[lane]));
  }
}

void ChaosMonitor::finished_step(int process, core::Epoch epoch, std::int64_t over, const ChaosState& state) {
  auto& before = over_of_[process];
  if (over != before + 1)
    violate("S4", fmt::format("a rank of epoch {} makes the update of step {} after {} steps", epoch.value,
                              over - 1, before));
  before = over;
  if (state != undisturbed(over))
    violate("S7", fmt::format("after {} steps, in epoch {}, a rank has other bits than the undisturbed job",
                              over, epoch.value));
}

void ChaosMonitor::begins(int process, std::int64_t over, const ChaosState& state, std::int64_t newest,
                          bool in_memory) {
  if (in_memory && !setup_.sharded && over < newest)
    violate("S5", fmt::format("ranks go back to {} steps, though one has {} in its memory", over, newest));
  if (!in_memory && newest >= 0 && !setup_.sharded)
    violate("S5", fmt::format("ranks go back to a save of {} steps, though one has {} in its memory", over,
                              newest));
  if (state != undisturbed(over))
    violate("S6", fmt::format("a rank begins with other bits than others have after {} steps", over));
  over_of_[process] = over;
}

void ChaosMonitor::saved(std::int64_t over, std::size_t element, std::uint64_t value) {
  if (value != undisturbed(over)[element])
    violate("S11", fmt::format("a save of {} steps writes part {} of another state", over, element));
}

void ChaosMonitor::committed(core::Epoch epoch) {
  if (epoch < claimed_)
    violate("S14", fmt::format("ranks of epoch {} commit a save, though epoch {} has begun", epoch.value,
                               claimed_.value));
}

void ChaosMonitor::loaded(std::int64_t over, const ChaosState& state) {
  if (state != undisturbed(over))
    violate("S9",
            fmt::format("a checkpoint of {} steps counts as good and is not the state after them", over));
}

void ChaosMonitor::look_at_store(Storage& storage) {
  const auto listed = list_checkpoints(storage);
  if (!listed) return;
  if (listed->empty() && had_checkpoint_ && !is_betrayed_)
    violate("S10", "there is no checkpoint any more, though there was one");
  for (const auto& each : *listed) {
    if (is_betrayed_ || !visible_.insert(each.name).second) continue;
    if (!is_good_quickly(storage, each.name))
      violate("S9", fmt::format("the checkpoint {} is visible before all of it is there", each.name));
  }
  // What was once there and is there no more was removed by retention, which keeps newer ones.
  for (auto name = visible_.begin(); name != visible_.end();) {
    const bool is_there = std::ranges::any_of(*listed, [&](const auto& each) { return each.name == *name; });
    const bool has_newer = !listed->empty() && listed->front().name > *name;
    if (!is_there && !has_newer && !is_betrayed_)
      violate("S14", fmt::format("the newest checkpoint, {}, is gone", *name));
    name = is_there ? std::next(name) : visible_.erase(name);
  }
  had_checkpoint_ = had_checkpoint_ || !listed->empty();
}

void ChaosMonitor::started(int slot, bool is_free) {
  if (!is_free)
    violate("NA-1", fmt::format("a process is started in slot {} while another runs there", slot));
}

bool ChaosMonitor::numbered(const std::vector<std::pair<int, int>>& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto [node, slot] = nodes[i];
    const auto wanted = static_cast<int>(i);
    if (node == wanted && slot == wanted * (setup_.ranks + setup_.spares)) continue;
    violate("N1", fmt::format("of {} nodes the one at place {} has number {}, and its first slot is {}",
                              nodes.size(), i, node, slot));
    return false;
  }
  return true;
}

void ChaosMonitor::blamed(std::string_view invariant, int slot, bool was_hit, std::string_view how) {
  if (!was_hit) violate(invariant, fmt::format("slot {} {}, though nothing was done to it", slot, how));
}

}  // namespace troupe::actors
