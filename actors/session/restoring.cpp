#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "actors/replica/copies.hpp"
#include "actors/session/joint_load.hpp"
#include "actors/session/local_search.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/session.hpp"
#include "actors/session/shared_targets.hpp"
#include "core/checkpoint/values_text.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

namespace {

/// Targets and where they are in memory.
struct Wanted {
  std::vector<core::LoadTarget> targets;
  std::vector<std::span<std::byte>> memory;

  void add(std::string key, core::DType dtype, const core::Shape& shape, core::Box box,
           gpu::BufferView view) {
    targets.push_back({std::move(key), dtype, shape, std::move(box), false});
    memory.emplace_back(view.data, view.bytes);
  }
};

}  // namespace

/// A restore that is under way: what rank 0 may propose, and what this rank's copies are worth.
struct Session::Restoring {
  Storage* storage = nullptr;  ///< of checkpoints; may be null
  Storage* copies = nullptr;   ///< null: local saves are not looked at
  std::vector<CheckpointName> checkpoints;
  std::size_t next_checkpoint = 0;
  LocalSearch search{{}};
  std::set<std::pair<core::CopyName, core::Rank>> damaged;  ///< of this rank's copies
  std::vector<std::string> passed_over;
  std::vector<std::string> notes;    ///< on local saves, which nobody counts on
  std::unique_ptr<JointLoad> joint;  ///< of the checkpoint that was read last
  std::int64_t optimizer_steps = 0;  ///< of it
};

core::Result<std::optional<Restored>> Session::restore(const RestoreOptions& options) {
  Restoring restoring;
  restoring.storage = options.from != nullptr ? options.from : world_.storage();
  const bool anything = options.from == nullptr && options.name.empty() && options.optimizer;
  if (local_ && anything) restoring.copies = world_.local_storage();
  if (restoring.storage == nullptr && restoring.copies == nullptr)
    return core::fail(Errc::unavailable, "this job has no directory to restore from");
  if (step_.value != 0 || saves_begun_ != 0 || local_saves_begun_ != 0)
    return core::fail(Errc::invalid_argument,
                      "a session is restored before its first step, not after step {}", step_.value);
  if (local_) restoring.search = LocalSearch(local_->cliques());
  if (!options.name.empty()) {
    restoring.checkpoints.push_back({options.name, {}});
  } else if (world_.rank().value == 0 && restoring.storage != nullptr) {
    restoring.checkpoints = TRY(list_checkpoints(*restoring.storage));
  }
  const auto prefix = fmt::format("restore/{}/", restores_++);
  bool copies_changed = restoring.copies != nullptr;
  for (std::size_t attempt = 0;; ++attempt) {
    const auto key = fmt::format("{}{}/", prefix, attempt);
    if (copies_changed) TRY(share_holdings(key, restoring));
    const auto choice = TRY(choose(key, restoring));
    restoring.notes.insert(restoring.notes.end(), choice.notes.begin(), choice.notes.end());
    if (choice.is_nothing()) break;
    auto restored = TRY(attempt_restore(key, choice, restoring, options.optimizer));
    if (restored) return restored;
    copies_changed = choice.local.has_value();
  }
  auto& passed_over = restoring.passed_over;
  if (passed_over.empty()) {
    for (const auto& note : restoring.notes) {
      if (world_.rank().value == 0) world_.log("nothing is restored; " + note);
    }
    return std::optional<Restored>{};
  }
  return tl::unexpected(abandon(
      {Errc::corrupt, fmt::format("no checkpoint could be loaded; {}", fmt::join(passed_over, "; "))}));
}

/// Tells rank 0 what this rank holds of local saves.
core::Result<void> Session::share_holdings(const std::string& attempt, Restoring& restoring) {
  auto found = TRY(find_copies(*restoring.copies, world_.world()));
  std::erase_if(found.held, [&](const core::HeldCopy& copy) {
    return restoring.damaged.contains({copy.name, copy.owner});
  });
  TRY(rendezvous_->set(fmt::format("{}holds/{}", attempt, world_.rank().value), TRY(text_of(found))));
  if (world_.rank().value != 0) return {};
  std::vector<FoundCopies> all;
  for (std::int32_t rank = 0; rank < world_.world().value; ++rank) {
    const auto text =
        TRY(rendezvous_->get(fmt::format("{}holds/{}", attempt, rank), options_.checkpoint.deadline));
    all.push_back(TRY(parse_holdings(text)));
  }
  restoring.search.hear(std::move(all));
  return {};
}

/// Rank 0's proposal: the newest there is, a local save before a checkpoint of the same step.
core::Result<RestoreChoice> Session::choose(const std::string& attempt, Restoring& restoring) {
  if (world_.rank().value == 0) {
    const bool has_checkpoint = restoring.next_checkpoint < restoring.checkpoints.size();
    const auto local = restoring.search.best();
    RestoreChoice choice;
    if (local && (!has_checkpoint || restoring.checkpoints[restoring.next_checkpoint].step <= local->step)) {
      choice = TRY(restoring.search.propose());
      restoring.search.failed();
    } else if (has_checkpoint) {
      choice.checkpoint = restoring.checkpoints[restoring.next_checkpoint++].name;
    }
    choice.notes = restoring.search.take_notes();
    TRY(rendezvous_->set(attempt + "choice", TRY(text_of(choice))));
  }
  return parse_choice(TRY(rendezvous_->get(attempt + "choice", options_.checkpoint.deadline)));
}

/// Nothing when a rank could not load it; `restoring` then knows why.
core::Result<std::optional<Restored>> Session::attempt_restore(const std::string& key,
                                                               const RestoreChoice& choice,
                                                               Restoring& restoring, bool optimizer) {
  Restored restored;
  core::Result<void> loaded;
  if (choice.local) {
    restored.name = directory_of(*choice.local);
    loaded = load_local(*choice.local, choice.transfers);
  } else {
    restored.name = choice.checkpoint;
    restoring.joint = std::make_unique<JointLoad>(
        JointLoad::Surroundings{world_, port_, *rendezvous_, *data_plane_, options_.checkpoint.load,
                                options_.checkpoint.deadline},
        key);
    auto checkpoint = load(restoring, choice.checkpoint, optimizer);
    if (checkpoint) {
      restored = std::move(*checkpoint);
    } else {
      TRY(restoring.joint->withdraw());
      loaded = tl::unexpected(checkpoint.error());
    }
  }
  const auto complaint = TRY(agree_on_load(key, loaded ? "" : loaded.error().message));
  if (complaint.empty()) {
    if (choice.local) {
      restored = TRY(take_over(key, *choice.local));
    } else {
      TRY(finish_load(restoring, restored.name));
      go_on_after(restored.step, restoring.optimizer_steps);
    }
    restored.passed_over = restoring.passed_over;
    restored.passed_over.insert(restored.passed_over.end(), restoring.notes.begin(), restoring.notes.end());
    return std::optional(std::move(restored));
  }
  restoring.passed_over.push_back(fmt::format("{}: {}", restored.name, complaint));
  if (choice.local) note_damage(*choice.local, restoring);
  return std::optional<Restored>{};
}

/// Looks at every byte of this rank's copies of a save that could not be loaded.
void Session::note_damage(const core::CopyName& name, Restoring& restoring) const {
  const auto found = find_copies(*restoring.copies, world_.world());
  if (!found) return;
  for (const auto& copy : found->held) {
    if (copy.name == name && !verify_copy(*restoring.copies, copy.name, copy.owner))
      restoring.damaged.emplace(copy.name, copy.owner);
  }
}

/// Empty when every rank has loaded, else what the first rank that could not says; the same on all.
core::Result<std::string> Session::agree_on_load(const std::string& attempt, const std::string& complaint) {
  const auto deadline = options_.checkpoint.deadline;
  TRY(rendezvous_->set(fmt::format("{}rank/{}", attempt, world_.rank().value), complaint));
  if (world_.rank().value == 0) {
    std::string first;
    for (std::int32_t rank = 0; rank < world_.world().value; ++rank) {
      const auto said = TRY(rendezvous_->get(fmt::format("{}rank/{}", attempt, rank), deadline));
      if (first.empty() && !said.empty()) first = fmt::format("rank {}: {}", rank, said);
    }
    TRY(rendezvous_->set(attempt + "verdict", first));
  }
  return rendezvous_->get(attempt + "verdict", deadline);
}

/// The session continues with the state that was loaded.
void Session::go_on_after(core::Step step, std::int64_t optimizer_steps) {
  adopted_ = true;
  step_ = step;
  optimizer_steps_ = optimizer_steps;
  data_plane_->restore_optimizer_steps(optimizer_steps_);
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    post(Role::parameter_shard, bucket, messages::StateRestored{core::Step{step_.value - 1}});
  }
}

/// Every rank has read its part of the checkpoint.
core::Result<void> Session::finish_load(Restoring& restoring, const std::string& name) {
  const auto exchanged = restoring.joint->exchange();
  restoring.joint.reset();
  if (exchanged) return {};
  // Nobody goes on with a part of it, and nobody waits for this rank.
  auto reason = abandon(exchanged.error());
  reason.message =
      fmt::format("while the ranks exchanged what they had read of {}: {}", name, reason.message);
  return tl::unexpected(std::move(reason));
}

core::Result<Restored> Session::load(Restoring& restoring, const std::string& name, bool optimizer) {
  auto& storage = *restoring.storage;
  const auto manifest = TRY(check_quickly(storage, name));
  const auto* counters = manifest.common.as_map();
  const auto* trained = counters != nullptr ? counters->find("optimizer_steps") : nullptr;
  if (trained == nullptr || !trained->as_int()) {
    return core::fail(Errc::mismatch, "{} has no 'optimizer_steps' in its common values: no session saved it",
                      name);
  }
  Wanted wanted;
  for (std::uint32_t p = 0; p < job_.specs.size(); ++p) {
    const auto& spec = job_.specs[p];
    wanted.add(spec.name, spec.dtype, spec.shape, core::Box::whole(spec.shape), data_plane_->parameter(p));
  }
  const auto state = state_of(job_, world_.rank());
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto& piece = state.pieces[i];
    const bool is_moment = piece.kind == StateKind::first_moment || piece.kind == StateKind::second_moment;
    if (piece.kind == StateKind::parameter || (is_moment && !optimizer)) continue;
    const auto& box = state.structure.pieces[i].box;
    const auto& tensor = state.structure.tensors[state.structure.pieces[i].tensor];
    auto key = tensor.key;
    // A job without narrow parameters keeps no copy of its own.
    if (piece.kind == StateKind::master && manifest.find(key) == nullptr) {
      key = key.substr(state_key(StateKind::master, job_.options.optimizer.kind, "").size());
    }
    const auto view = data_plane_->state(piece.kind, piece.bucket)
                          .subview(static_cast<std::size_t>(piece.first) * sizeof(float),
                                   static_cast<std::size_t>(box.elements()) * sizeof(float));
    wanted.add(std::move(key), tensor.dtype, tensor.shape, box, view);
  }
  TRY(restoring.joint->read(storage, name, manifest, shared_targets(job_, manifest, optimizer),
                            std::move(wanted.targets), std::move(wanted.memory)));
  restoring.optimizer_steps = optimizer ? *trained->as_int() : 0;
  const auto* common = counters->find("trainer");
  return Restored{name, manifest.step, common != nullptr ? *common : Value{}, manifest.topology, {}};
}

}  // namespace troupe::actors
