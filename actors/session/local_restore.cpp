#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/planes/replica/copies.hpp"
#include "actors/planes/step/state_memory.hpp"
#include "actors/session/restore.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

core::Result<void> Restore::load_local(const RestoreChoice& choice) {
  TRY(retrieve_local(choice));
  TRY(make_uploads());
  auto& storage = *in_.world.local_storage();
  const auto manifest = TRY(read_copy_manifest(storage, *choice.local, in_.rank()));
  touched_.merge(state_keys(in_.plan));
  const auto& own = parts_.tensor_keys;
  touched_.merge(own.keys_of_rank(static_cast<std::size_t>(in_.rank().value), own.sets));
  return read_copy(storage, manifest, in_.state.structure, spans_of(in_.memory), uploads_.get());
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

/// Every rank has loaded its own copy: the rest of the state comes from the other ranks.
core::Result<Restore::Loaded> Restore::take_over(const std::string& attempt, const core::CopyName& name) {
  const auto deadline = in_.options.checkpoint.deadline;
  if (in_.is_first_rank()) {
    const auto manifest = TRY(read_copy_manifest(*in_.world.local_storage(), name, in_.rank()));
    const auto common = TRY(core::parse_value(manifest.common));
    const auto topology = TRY(core::parse_value(manifest.topology));
    TRY(in_.rendezvous.set(attempt + "values", TRY(core::value_text(Value::List{common, topology}))));
  }
  const auto values = TRY(core::parse_value(TRY(in_.rendezvous.get(attempt + "values", deadline))));
  const auto* trained = values.find("0.optimizer_steps");
  if (trained == nullptr || !trained->as_int())
    return core::fail(Errc::corrupt, "{} has no 'optimizer_steps' in its common values", directory_of(name));
  TRY(round_parameters());
  in_.data.gather_parameters();
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
  return loaded;
}

/// Checks every byte of this rank's copies of a save that could not be loaded.
void Restore::note_damage(const core::CopyName& name) {
  const auto found = find_copies(*copies_, in_.world.world_size());
  if (!found) return;
  for (const auto& copy : found->held) {
    if (copy.name == name && !verify_copy(*copies_, copy.name, copy.owner))
      damaged_.emplace(copy.name, copy.owner);
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
