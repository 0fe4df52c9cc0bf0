#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/context.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/remains.hpp"
#include "actors/session/restore.hpp"
#include "core/checkpoint/survivors.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// All ranks find the newest step after which they can go on together with what they have in memory from
/// before the epoch, and give each other what is missing. Used by the trainer's thread, before anything else
/// is asked of the session.
class Recovery {
 public:
  /// `remains` may be null. `memory` is the session's list, which changes where memory is taken over.
  /// Everything given must outlive it.
  Recovery(const SessionContext& context, Remains* remains, HostExchange* hosts,
           std::vector<gpu::BufferView>& memory);

  /// Empty where the ranks have no common step; then nothing of this session has changed.
  core::Result<std::optional<LoadedState>> run();
  /// These two describe what was found: valid once memory was taken over, even if run() then fails.
  std::uint64_t origin() const { return step_.origin; }
  const Saves::Progress& progress() const { return progress_; }
  /// The session's data plane has the memory of the remains, and with it the state.
  bool has_taken_memory() const { return has_taken_memory_; }

 private:
  core::Result<void> hear_reports();
  core::Result<void> hear_structures();
  core::Result<bool> choose();
  core::Result<void> finish_step();
  core::Result<void> share_progress();
  core::Result<void> take_memory();
  core::Result<void> exchange();
  bool is_holder() const;
  bool stays() const { return reports_[static_cast<std::size_t>(in_.rank().value)].stays && is_holder(); }

  const SessionContext& in_;
  Remains* remains_;
  HostExchange* hosts_;
  std::vector<gpu::BufferView>& memory_;
  std::vector<core::SurvivorReport> reports_;  ///< by rank
  std::map<std::uint64_t, core::SaveStructure> structures_;
  core::CommonStep step_;
  std::unique_ptr<const core::Survival> survival_;
  Saves::Progress progress_;
  LoadedState loaded_;
  bool has_taken_memory_ = false;
};

}  // namespace troupe::actors
