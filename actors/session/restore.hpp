#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/upload.hpp"
#include "actors/session/context.hpp"
#include "actors/session/gathered_copies.hpp"
#include "actors/session/host_exchange.hpp"
#include "actors/session/joint_load.hpp"
#include "actors/session/local_search.hpp"
#include "actors/session/local_tier.hpp"
#include "actors/session/outcomes.hpp"
#include "actors/session/trainer_tensors.hpp"
#include "actors/session/wanted.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/optimizer/loss_scaler.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// The state with which a session continues.
struct LoadedState {
  Restored restored;
  core::StepCount optimizer_steps{};
  core::StepsMissed steps_missed{};
  std::optional<core::LossScaler::State> loss_scaling{};
};

/// What Saves wrote about a dynamic loss scale; empty if there was none.
core::Result<std::optional<core::LossScaler::State>> loss_scaling_of(const core::Value* values);
/// The optimizer and the shards continue with the loaded state.
core::Result<void> go_on_after(const SessionContext& in, const LoadedState& loaded);

/// One restore: all ranks find the newest state that every one of them can load, and load it. Used by the
/// trainer's thread, before the first step.
class Restore {
 public:
  /// What a restore works on besides the context.
  struct Parts {
    LocalTier* local = nullptr;     ///< null: there are no local saves
    HostExchange* hosts = nullptr;  ///< null: the data plane exchanges what ranks have read
    const TensorKeys& tensor_keys;
  };
  using Loaded = LoadedState;

  /// `number` counts this session's restores. Everything given must outlive it.
  Restore(const SessionContext& context, Parts parts, const RestoreOptions& options, std::uint64_t number);

  /// Empty if there is nothing to restore. If there is something but none of it can be loaded, this rank
  /// gives up and the Error says why, for each candidate.
  core::Result<std::optional<Loaded>> run();

 private:
  core::Result<void> share_holdings(const std::string& attempt);
  core::Result<RestoreChoice> choose(const std::string& attempt);
  core::Result<std::optional<Loaded>> try_choice(const std::string& attempt, const RestoreChoice& choice);
  core::Result<std::string> agree(const std::string& attempt, const std::string& complaint);
  core::Result<void> make_uploads();

  // For a checkpoint.
  core::Result<void> compare(const std::string& attempt, const std::string& name,
                             const core::Result<core::Manifest>& manifest);
  core::Result<Loaded> load(const std::string& attempt, const std::string& name,
                            const core::Manifest& manifest);
  core::Result<Wanted> want(const std::string& attempt, const core::Manifest& manifest, Restored& restored);
  core::Result<core::KeyRequests> all_requests(const std::string& attempt, const core::Manifest& manifest);
  core::Result<void> tell_requests(const std::string& attempt, const core::KeySet& keys);
  core::Result<core::KeySet> requests_of_part(const std::string& attempt, int part);
  core::Result<void> check_first_values(const core::KeySet& dropped) const;
  core::Result<void> round_parameters();
  core::Result<void> finish_load(const std::string& name);

  // For a local save; in local_restore.cpp.
  core::Result<void> load_local(const std::string& attempt, const RestoreChoice& choice);
  core::Result<void> load_own_copy(const RestoreChoice& choice);
  core::Result<void> retrieve_local(const RestoreChoice& choice);
  core::Result<FoundCopies> find_all_copies() const;
  core::Result<Loaded> take_over(const std::string& attempt, const RestoreChoice& choice);
  core::Result<void> tell_values(const std::string& attempt, const RestoreChoice& choice) const;
  void note_damage(const core::CopyName& name);
  core::Result<void> make_room(const std::string& attempt, const RestoreChoice& restored);

  const SessionContext& in_;
  Parts parts_;
  const RestoreOptions& options_;
  std::string prefix_;                         ///< prefix of this restore's keys in the job's store
  Storage* storage_ = nullptr;                 ///< of checkpoints; may be null
  Storage* copies_ = nullptr;                  ///< of this rank; null: local saves are ignored
  std::map<core::Rank, Storage*> all_copies_;  ///< and those beside it, by whose they are
  std::vector<CheckpointName> checkpoints_;
  std::size_t next_checkpoint_ = 0;
  LocalSearch search_{{}};
  std::set<std::tuple<core::CopyName, core::Rank, core::Rank>> damaged_;  ///< copies, owners and storages
  std::vector<std::string> passed_over_;      ///< what was found and could not be loaded, and why
  std::vector<std::string> notes_;            ///< about local saves, which nothing relies on
  std::unique_ptr<UploadPool> uploads_;       ///< null: not needed, or not yet
  std::unique_ptr<JointLoad> joint_;          ///< for the checkpoint that was read last
  std::unique_ptr<GatheredCopies> gathered_;  ///< for the local save that was read last
  std::vector<std::size_t> own_copies_;       ///< pieces of fp32 copies that the checkpoint lacks
  std::string told_;      ///< the attempt in which other ranks were told what this one requests
  core::KeySet touched_;  ///< what failed attempts may have overwritten on this rank
};

}  // namespace troupe::actors
