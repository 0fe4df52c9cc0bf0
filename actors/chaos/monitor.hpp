#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/chaos/schedule.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/storage.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

/// The state of the simulated training: so few numbers, each of which depends on all of them and on the data
/// of every step before, that wrong or lost steps show in all of them.
using ChaosState = std::vector<std::uint64_t>;
inline constexpr std::size_t kChaosElements = 6;

/// What one lane contributes to a step.
ChaosState lane_gradient(const ChaosState& state, std::int64_t step, int lane);
/// The lanes are added in their order, whoever has played them.
ChaosState state_after(const ChaosState& state, const std::vector<ChaosState>& lanes);

/// How often each kind of fault has met each phase.
struct ChaosCoverage {
  std::array<std::array<std::uint64_t, kChaosPhases>, kChaosKinds> met{};

  void add(const ChaosCoverage& other);
  std::vector<std::string> lacking() const;
};

/// Checks the invariants S1 to S16, L1 to L8 and R1 to R3 of docs/architecture.md, as far as they concern a
/// job's life, while the job is simulated.
class ChaosMonitor {
 public:
  ChaosMonitor(const ChaosSetup& setup, std::function<std::chrono::nanoseconds()> now);

  /// Each begins with the invariant's name. At most twenty are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  void violate(std::string_view invariant, const std::string& what);

  /// The state after this many steps of a job in which nothing goes wrong.
  const ChaosState& undisturbed(std::int64_t steps);

  const NextEpoch& newest_view() const { return newest_view_; }

  // S1: epochs grow, and one has the same ranks for all. `from` is the process that tells or is told.
  void announced(const NextEpoch& next);
  void entered(const NextEpoch& next);
  // S2.
  void heard(core::Epoch own, core::Epoch from);
  // S3: the holders of parts, by element, of a state that is put together.
  void put_together(const std::vector<int>& holders, std::int64_t over);
  // S8.
  void played(std::int64_t step, const std::vector<int>& lanes);
  /// A rank has finished a step: S4, S5, S6, S7. `process` is unique.
  void finished_step(int process, core::Epoch epoch, std::int64_t over, const ChaosState& state);
  /// A rank begins an epoch with a state: S5, S6. `newest`: the most that any of its ranks had in memory.
  void begins(int process, std::int64_t over, const ChaosState& state, std::int64_t newest, bool in_memory);
  void ended(int process) { over_of_.erase(process); }
  // S11: what a save writes of the state after this many steps.
  void saved(std::int64_t over, std::size_t element, std::uint64_t value);
  // S9: a checkpoint was read as good.
  void loaded(std::int64_t over, const ChaosState& state);
  /// The store has changed: S9, S10, S14. `by`: the epoch of who changed it.
  void look_at_store(Storage& storage);
  /// Power fails in a disk that lied: what was thought durable may be gone.
  void store_was_betrayed() { is_betrayed_ = true; }
  // NA-1.
  void started(int slot, bool is_free);
  // N1: number and first slot of each node; whether they are right.
  bool numbered(const std::vector<std::pair<int, int>>& nodes);
  // S16, L8: a rank, or all of a host, is said to be what failed. `was_hit`: something was done to it.
  void blamed(std::string_view invariant, int slot, bool was_hit, std::string_view how);

  // S14: a save was committed; the epoch has said that no earlier one may do so.
  void committed(core::Epoch epoch);
  void claimed(core::Epoch epoch) { claimed_ = std::max(claimed_, epoch); }

  int training = 0;  ///< processes that take steps
  int saving = 0;    ///< processes that save
  int deciding = 0;  ///< ranks between their word on a step and its end

 private:
  std::vector<std::string> violations_;
  ChaosSetup setup_;
  std::function<std::chrono::nanoseconds()> now_;
  std::vector<ChaosState> undisturbed_;
  std::map<std::uint64_t, NextEpoch> views_;  ///< by epoch
  core::Epoch newest_{};
  core::Epoch claimed_{};
  NextEpoch newest_view_;
  std::map<int, std::int64_t> over_of_;  ///< by process
  std::set<std::string> visible_;        ///< checkpoints
  bool had_checkpoint_ = false;
  bool is_betrayed_ = false;
};

}  // namespace troupe::actors
