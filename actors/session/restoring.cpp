#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "actors/checkpoint/upload.hpp"
#include "actors/replica/copies.hpp"
#include "actors/session/joint_load.hpp"
#include "actors/session/local_search.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/session.hpp"
#include "actors/session/wanted.hpp"
#include "core/checkpoint/values_text.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

namespace {

/// Keys that begin so are of an optimizer's state.
constexpr std::string_view kOptimizerState = "optimizer.state.";

std::vector<std::span<std::byte>> spans_of(const std::vector<gpu::BufferView>& views) {
  std::vector<std::span<std::byte>> spans;
  for (const auto view : views) spans.emplace_back(view.data, view.bytes);
  return spans;
}

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
  std::vector<std::string> notes;       ///< on local saves, which nobody counts on
  std::unique_ptr<UploadPool> uploads;  ///< null: not needed, or not yet
  std::unique_ptr<JointLoad> joint;     ///< of the checkpoint that was read last
  std::vector<std::size_t> own_copies;  ///< pieces of fp32 copies that it lacks
  std::int64_t optimizer_steps = 0;     ///< of it
  core::KeySet touched;                 ///< what an attempt that failed may have written to on this rank
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
    auto restored = TRY(attempt_restore(key, choice, restoring, options));
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
                                                               Restoring& restoring,
                                                               const RestoreOptions& options) {
  Restored restored;
  core::Result<void> loaded;
  if (choice.local) {
    restored.name = directory_of(*choice.local);
    loaded = load_local(*choice.local, choice.transfers, restoring);
  } else {
    restored.name = choice.checkpoint;
    restoring.joint = std::make_unique<JointLoad>(
        JointLoad::Surroundings{world_, port_, *rendezvous_, *data_plane_, host_exchange_.get(),
                                options_.checkpoint.load, options_.checkpoint.deadline},
        key);
    auto checkpoint = load(restoring, choice.checkpoint, options);
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
      for (auto i : restoring.own_copies) {
        const auto& piece = state_.pieces[i];
        data_plane_->adopt(piece.bucket,
                           {piece.first, piece.first + state_.structure.pieces[i].box.elements()});
      }
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

/// Whatever is loaded goes through them, where the host does not reach the device's memory.
core::Result<void> Session::make_uploads(Restoring& restoring) {
  auto& device = world_.device();
  if (device.is_host_memory() || restoring.uploads) return {};
  restoring.uploads = TRY(UploadPool::create(device, options_.checkpoint.load.staging_bytes,
                                             world_.read_threads(), options_.checkpoint.deadline));
  return {};
}

core::Result<void> Session::load_local(const core::CopyName& name,
                                       const std::vector<core::CopyTransfer>& transfers,
                                       Restoring& restoring) {
  TRY(retrieve_local(name, transfers));
  TRY(make_uploads(restoring));
  auto& storage = *world_.local_storage();
  const auto manifest = TRY(read_copy_manifest(storage, name, world_.rank()));
  restoring.touched.merge(state_keys(job_));
  const auto& own = tensor_keys_[static_cast<std::size_t>(world_.rank().value)];
  restoring.touched.insert(own.begin(), own.end());
  return read_copy(storage, manifest, state_.structure, spans_of(memory_), restoring.uploads.get());
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

/// What this rank reads, and what it does without. Every rank comes to the same verdict.
core::Result<Wanted> Session::want(const core::Manifest& manifest, const RestoreOptions& options,
                                   Restoring& restoring, Restored& restored) {
  auto wanted = wanted_of(manifest, job_, state_, memory_, *data_plane_, options_.tensors, options.optimizer);
  core::KeySet stored;
  for (const auto& tensor : manifest.tensors) {
    const bool is_optimizer = tensor.key.starts_with(kOptimizerState);
    if (options.optimizer || !is_optimizer) stored.insert(tensor.key);
  }
  std::vector<core::KeySet> requests(tensor_keys_.size(), requested_keys(manifest, job_, options.optimizer));
  for (std::size_t rank = 0; rank < requests.size(); ++rank)
    requests[rank].insert(tensor_keys_[rank].begin(), tensor_keys_[rank].end());
  // Weights may be read from the optimizer's fp32 copy.
  for (const auto& key : requests.front()) {
    if (manifest.find(key) != nullptr) stored.insert(key);
  }
  auto verdict = core::judge_keys(options.strictness, requests, stored);
  if (verdict.error) return tl::unexpected(*std::move(verdict.error));
  if (verdict.warning && world_.rank().value == 0) world_.log(*verdict.warning);
  const auto self = static_cast<std::size_t>(world_.rank().value);
  const auto& dropped = verdict.dropped[self];
  for (const auto& key : dropped) {
    if (restoring.touched.contains(key)) {
      return core::fail(Errc::mismatch,
                        "'{}' is not in it, and its first values are lost to a checkpoint that could not be "
                        "loaded; name the checkpoint to restore from",
                        key);
    }
  }
  restoring.own_copies.clear();
  for (std::size_t i = 0; i < state_.pieces.size(); ++i) {
    const auto& piece = state_.pieces[i];
    if (piece.kind == StateKind::master && dropped.contains(key_of(manifest, job_, state_, i)))
      restoring.own_copies.push_back(i);
  }
  wanted.drop(dropped);
  if (!verdict.unexpected.empty()) restored.unexpected = std::move(verdict.unexpected[self]);
  restored.missing = std::move(verdict.missing);
  return wanted;
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

core::Result<Restored> Session::load(Restoring& restoring, const std::string& name,
                                     const RestoreOptions& options) {
  const auto manifest = TRY(check_quickly(*restoring.storage, name));
  const auto* counters = manifest.common.as_map();
  const auto* trained = counters != nullptr ? counters->find("optimizer_steps") : nullptr;
  if (trained == nullptr || !trained->as_int()) {
    return core::fail(Errc::mismatch, "{} has no 'optimizer_steps' in its common values: no session saved it",
                      name);
  }
  Restored restored;
  auto wanted = TRY(want(manifest, options, restoring, restored));
  restoring.touched.merge(wanted.keys());
  TRY(make_uploads(restoring));
  TRY(restoring.joint->read(*restoring.storage, name, manifest,
                            shared_targets(job_, manifest, options.optimizer), std::move(wanted.targets),
                            spans_of(wanted.memory), restoring.uploads.get()));
  restored.name = name;
  restored.step = manifest.step;
  const auto* common = counters->find("trainer");
  if (common != nullptr) restored.common = *common;
  restored.topology = manifest.topology;
  restoring.optimizer_steps = options.optimizer ? *trained->as_int() : 0;
  return restored;
}

}  // namespace troupe::actors
