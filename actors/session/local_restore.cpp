#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/planes/replica/copies.hpp"
#include "actors/session/last_step.hpp"
#include "actors/session/restore.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

/// What is in this rank's storage, and beside it.
core::Result<FoundCopies> Restore::find_all_copies() const {
  FoundCopies all;
  for (const auto& [rank, storage] : all_copies_) {
    auto found = find_copies(*storage);
    // Those beside it may be about to change.
    if (!found && rank != in_.rank()) continue;
    if (!found) return found;
    for (auto& copy : found->held) {
      if (rank != in_.rank()) copy.beside = rank;
      all.held.push_back(copy);
    }
    if (rank == in_.rank()) all.passed_over = std::move(found->passed_over);
  }
  return all;
}

core::Result<void> Restore::load_local(const std::string& attempt, const RestoreChoice& choice) {
  // An attempt before this one may have failed.
  gathered_.reset();
  TRY(make_uploads());
  if (choice.givers.empty()) return load_own_copy(choice);
  gathered_ = std::make_unique<GatheredCopies>(in_, parts_.hosts, choice, attempt);
  return gathered_->prepare(all_copies_);
}

core::Result<void> Restore::load_own_copy(const RestoreChoice& choice) {
  TRY(retrieve_local(choice));
  const auto manifest = TRY(read_copy_manifest(*copies_, *choice.local, in_.rank()));
  touched_.merge(state_keys(in_.plan));
  const auto own = parts_.tensor_keys.requests();
  touched_.merge(own.keys_of_rank(static_cast<std::size_t>(in_.rank().value), own.sets));
  return read_copy(*copies_, manifest, in_.state.structure, spans_of(in_.memory), uploads_.get());
}

/// Retrieves the copies that its clique has and this rank should have, its own among them.
core::Result<void> Restore::retrieve_local(const RestoreChoice& choice) {
  const auto& clique = parts_.local->clique();
  messages::RetrieveBegan wanted{*choice.local, {}};
  for (const auto& transfer : choice.transfers) {
    const bool is_ours = std::find(clique.begin(), clique.end(), transfer.from) != clique.end();
    if (is_ours) wanted.transfers.push_back(transfer);
  }
  if (wanted.transfers.empty()) return {};
  in_.post(Role::replica_keeper, 0, wanted);
  auto retrieved = in_.inbox.wait_retrieved(3 * in_.options.local.deadline);
  // What counts is the rank's own copy; a missing copy for others is no reason to go back.
  const bool has_own = read_copy_manifest(*in_.world.local_storage(), *choice.local, in_.rank()).has_value();
  return has_own ? core::Result<void>{} : retrieved;
}

/// One rank has the values that are saved with the copies of rank 0.
core::Result<void> Restore::tell_values(const std::string& attempt, const RestoreChoice& choice) const {
  const auto giver = choice.givers.empty() ? core::CopyGiver{} : choice.givers.front();
  if (giver.from != in_.rank()) return {};
  const auto manifest = TRY(read_copy_manifest(*all_copies_.at(giver.storage), *choice.local, core::Rank{0}));
  const auto common = TRY(core::parse_value(manifest.common));
  const auto topology = TRY(core::parse_value(manifest.topology));
  return in_.rendezvous.set(attempt + "values", TRY(core::value_text(Value::List{common, topology})));
}

/// Every rank has loaded its own copy, or what it gives: the rest of the state comes from the other ranks.
core::Result<Restore::Loaded> Restore::take_over(const std::string& attempt, const RestoreChoice& choice) {
  const auto& name = *choice.local;
  const auto deadline = in_.options.checkpoint.deadline;
  TRY(tell_values(attempt, choice));
  const auto values = TRY(core::parse_value(TRY(in_.rendezvous.get(attempt + "values", deadline))));
  const auto* trained = values.find("0.optimizer_steps");
  if (trained == nullptr || !trained->as_int())
    return core::fail(Errc::corrupt, "{} has no 'optimizer_steps' in its common values", directory_of(name));
  if (gathered_) {
    const auto exchanged = std::exchange(gathered_, nullptr)->exchange(uploads_.get());
    // No rank goes on with a part of it, and no rank waits for this one.
    if (!exchanged) return tl::unexpected(in_.abandon(exchanged.error()));
  }
  TRY(round_parameters());
  in_.data.launches().gather_parameters();
  TRY(in_.inbox.wait_gathered(deadline));
  const auto* common = values.find("0.trainer");
  const auto* topology = values.find("1");
  Loaded loaded;
  loaded.restored.name = directory_of(name);
  loaded.restored.step = core::next_step(name.step);
  if (common != nullptr) loaded.restored.common = *common;
  if (topology != nullptr) loaded.restored.topology = *topology;
  loaded.restored.is_local = true;
  loaded.optimizer_steps = {*trained->as_int()};
  loaded.steps_missed = TRY(
      core::steps_missed_in(values.find(fmt::format("0.{}", core::kStepsMissedKey)), loaded.optimizer_steps));
  loaded.loss_scaling = TRY(loss_scaling_of(values.find("0.loss_scaling")));
  loaded.restored.last = TRY(last_step_of(values.find(fmt::format("0.{}", kLastStepKey)), name.step));
  return loaded;
}

/// Checks every byte of this rank's copies of a save that could not be loaded.
void Restore::note_damage(const core::CopyName& name) {
  const auto found = find_all_copies();
  if (!found) return;
  for (const auto& copy : found->held) {
    const auto storage = copy.beside.value_or(in_.rank());
    if (copy.name == name && !verify_copy(*all_copies_.at(storage), copy.name, copy.owner))
      damaged_.emplace(copy.name, copy.owner, storage);
  }
}

/// Removes local saves to which no restore will go back, so that what interrupted saves left takes no room
/// from this session's: those newer than the newest that every clique can restore, because the job goes on
/// from there; and, when no copy of that one is missing, those that are older than what is kept.
core::Result<void> Restore::make_room(const std::string& attempt, const RestoreChoice& restored) {
  search_.loaded();
  TRY(share_holdings(attempt));
  if (in_.is_first_rank()) {
    const auto best = search_.best();
    const bool is_certain = best && !search_.has_given_up() && (!restored.local || restored.local == best);
    const auto newest = is_certain ? TRY(search_.propose()) : RestoreChoice{};
    TRY(in_.rendezvous.set(attempt + "newest", TRY(text_of(newest))));
  }
  const auto text = TRY(in_.rendezvous.get(attempt + "newest", in_.options.checkpoint.deadline));
  const auto newest = TRY(parse_choice(text));
  if (!newest.local) return {};
  const bool is_whole = newest.transfers.empty();
  const int keep = is_whole ? in_.options.local.keep : std::numeric_limits<int>::max();
  if (auto tidied = tidy_copies(*copies_, *newest.local, keep); !tidied)
    in_.world.log(Subsystem::replica)
        .warning("what earlier local saves left was not removed: {}", tidied.error().message);
  return {};
}

}  // namespace troupe::actors
