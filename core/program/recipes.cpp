#include "core/program/recipes.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/plan/placement.hpp"

namespace troupe::core {
namespace {

RecipeStep wait(Mark mark, Queue queue = Queue::stream) {
  return {.action = Action::wait, .queue = queue, .mark = mark};
}
RecipeStep record(Mark mark, Queue queue = Queue::sums) {
  return {.action = Action::record, .queue = queue, .mark = mark};
}
RecipeStep step(Action action, Queue queue = Queue::stream) {
  return {.action = action, .queue = queue};
}
RecipeStep move(Action action, Place from, Place to, Queue queue = Queue::stream) {
  return {.action = action, .queue = queue, .from = from, .to = to};
}
RecipeStep post(Place from, Place to) {
  return move(Action::post, from, to);
}

void append(std::vector<RecipeStep>& steps, std::initializer_list<RecipeStep> more) {
  steps.insert(steps.end(), more);
}

/// Sums come after the collective that brings what they add.
void deliver(std::vector<RecipeStep>& steps) {
  append(steps, {record(Mark::exchanged, Queue::stream), wait(Mark::exchanged, Queue::sums)});
}

RecipeStep scaled_if(bool scaled, RecipeStep step) {
  step.scaled = scaled;
  return step;
}

}  // namespace

RecipePlanner::RecipePlanner(const ProgramInputs& inputs, std::vector<Recipe>& recipes)
    : inputs_(&inputs), recipes_(&recipes) {
  const auto& gradients = inputs.placements.gradients;
  each_round_ = std::find(gradients.begin(), gradients.end(), Placement::flat_shard) != gradients.end();
}

int RecipePlanner::number_of(Recipe recipe) {
  const auto found = std::find(recipes_->begin(), recipes_->end(), recipe);
  const auto number = static_cast<int>(found - recipes_->begin());
  if (found == recipes_->end()) recipes_->push_back(std::move(recipe));
  return number;
}

const Unit& RecipePlanner::unit_of(const ProgramEntry& entry) const {
  return inputs_->units[entry.tensor.unit];
}

const TensorClass& RecipePlanner::class_of(const ProgramEntry& entry) const {
  return inputs_->classes[unit_of(entry).tensors[static_cast<std::size_t>(entry.tensor.tensor)].tensor_class];
}

bool RecipePlanner::starts_from_full(const ProgramEntry& entry) const {
  return each_round_ && entry.from != inputs_->placements.gradients;
}

bool RecipePlanner::rests(const ProgramEntry& entry) const {
  return starts_from_full(entry) && entry.to == inputs_->placements.gradients;
}

Recipe RecipePlanner::recipe_of(const ProgramEntry& entry, Role role, bool first_round) const {
  if (entry.tensor.kind == TensorKind::verdict) {
    return {.before = {step(Action::write_verdict, Queue::sums), record(Mark::measured), wait(Mark::measured),
                       post(Place::verdict, Place::verdict), step(Action::read_verdict)}};
  }
  if (entry.tensor.kind == TensorKind::parameters) return of_parameters(entry);
  if (is_also_sum(entry)) return of_sum_beyond_axes(entry);
  if (entry.operation == CollectiveKind::all_gather) return of_gathered_sums(entry);
  if (entry.operation == CollectiveKind::all_to_all) return of_exchange(entry, role);
  return of_reduction(entry, role, first_round);
}

/// Kept as placements_in() says.
bool RecipePlanner::starts_from_kept(const ProgramEntry& entry) const {
  if (unit_of(entry).residency != Residency::resident) return entry.from == inputs_->placements.parameters;
  return entry.from.size() == inputs_->placements.parameters.size() &&
         std::all_of(entry.from.begin(), entry.from.end(),
                     [](Placement placement) { return placement == Placement::replicated; });
}

/// What the optimizer stepped goes to where parameters are kept, everything else to a slot of the pool.
Recipe RecipePlanner::of_parameters(const ProgramEntry& entry) const {
  const bool publishes = entry.ready.phase == Phase::update;
  const Place from = publishes || starts_from_kept(entry) ? Place::kept_parameters : Place::full_parameters;
  const Place to = publishes ? Place::kept_parameters : Place::full_parameters;
  Recipe recipe{.before = {wait(Mark::updated)}};
  if (!publishes) append(recipe.before, {wait(Mark::released)});
  if (!is_in_blocks(entry)) {
    append(recipe.before, {post(from, to)});
    return recipe;
  }
  // What this rank gathers into its own place stays as it is: others may be reading it.
  const Action unpack = from == to ? Action::unpack_others : Action::unpack_blocks;
  append(recipe.before, {move(Action::pack_blocks, from, Place::blocks), step(Action::post_blocks),
                         move(unpack, Place::blocks, to)});
  return recipe;
}

/// The second half of an all_reduce: finished sums go from their owners to all.
Recipe RecipePlanner::of_gathered_sums(const ProgramEntry& entry) const {
  Recipe recipe{.before = {wait(Mark::reduced)}};
  if (entry.wire == class_of(entry).gradient) {
    append(recipe.before, {step(Action::count), post(Place::sums, Place::sums)});
  } else if (entry.counts.members() > 1) {
    append(recipe.each_chunk,
           {step(Action::reserve), step(Action::cut_gather),
            move(Action::pack_part, Place::sums, Place::sent), post(Place::sent, Place::arrived)});
    deliver(recipe.each_chunk);
    append(recipe.each_chunk,
           {move(Action::unpack, Place::arrived, Place::sums, Queue::sums), record(Mark::staged)});
  }
  return recipe;
}

/// What this rank owns, with all lanes included, becomes the sum over the ranks that own the same part.
Recipe RecipePlanner::of_sum_beyond_axes(const ProgramEntry& entry) const {
  Recipe recipe{.before = {wait(Mark::reduced)}};
  if (is_ordered()) {
    append(recipe.each_chunk,
           {step(Action::reserve), step(Action::cut_part), post(Place::sums, Place::arrived)});
    deliver(recipe.each_chunk);
    append(recipe.each_chunk,
           {scaled_if(true, move(Action::add_members, Place::arrived, Place::sums, Queue::sums)),
            record(Mark::staged)});
  } else {
    append(recipe.before, {post(Place::sums, Place::sums)});
    deliver(recipe.before);
  }
  end_reduction(entry, {.completes = true}, recipe);
  return recipe;
}

/// The first one in a round takes what backward has left, later ones what the one before has summed. Without
/// a lane of its own a rank sends the zeros that its last lane's reduction left.
void RecipePlanner::begin_reduction(const ProgramEntry& entry, Recipe& recipe) const {
  const bool is_first =
      std::all_of(entry.from.begin(), entry.from.end(), [](Placement p) { return p == Placement::partial; });
  append(recipe.before, {step(Action::note), wait(is_first ? Mark::prepared : Mark::reduced)});
  if (starts_from_full(entry)) append(recipe.before, {wait(Mark::cleared)});
}

Recipe RecipePlanner::of_exchange(const ProgramEntry& entry, Role role) const {
  Recipe recipe;
  begin_reduction(entry, recipe);
  // Sums that are carried were sent on before the stream reaches the exchange after the next one, which sums
  // wait for before they overwrite them.
  if (!role.reduces_last && !rests(entry)) append(recipe.before, {step(Action::carry)});
  const bool is_alone = entry.counts.members() == 1;
  auto& chunk = recipe.each_chunk;
  append(chunk, {step(is_alone ? Action::keep : Action::reserve)});
  if (!is_alone) {
    append(chunk, {step(Action::cut_exchange), step(Action::send), post(Place::sent, Place::arrived)});
  }
  deliver(chunk);
  const Action add = is_ordered() ? Action::add_tree : Action::add_in_order;
  append(chunk,
         {scaled_if(is_ordered() && role.completes, move(add, Place::arrived, Place::sums, Queue::sums))});
  if (!is_alone) append(chunk, {record(Mark::staged)});
  end_reduction(entry, role, recipe);
  return recipe;
}

/// A back-end's own sum. What later rounds bring is added to what earlier ones left.
Recipe RecipePlanner::of_reduction(const ProgramEntry& entry, Role role, bool first_round) const {
  Recipe recipe;
  begin_reduction(entry, recipe);
  const Place from = starts_from_full(entry) ? Place::full_gradients : Place::sums;
  if (rests(entry) && !first_round) {
    append(recipe.before, {step(Action::reserve), step(Action::cut_sums), post(from, Place::arrived)});
    deliver(recipe.before);
    append(recipe.before,
           {move(Action::accumulate, Place::arrived, Place::sums, Queue::sums), record(Mark::staged)});
  } else {
    append(recipe.before, {post(from, rests(entry) ? Place::sums : from)});
    deliver(recipe.before);
  }
  end_reduction(entry, role, recipe);
  return recipe;
}

/// What follows the sums. Norms measure what all ranks will have, so what others get as the wire has it is
/// rounded first.
void RecipePlanner::end_reduction(const ProgramEntry& entry, Role role, Recipe& recipe) const {
  const TensorClass& type = class_of(entry);
  const auto& sizes = inputs_->domains[type.domain].sizes;
  const bool is_gathered = shard_count(entry.to, sizes) != shard_count(inputs_->placements.optimizer, sizes);
  if (role.completes && is_gathered && !is_ordered() && type.has_narrow_wire()) {
    append(recipe.after, {step(Action::round, Queue::sums)});
  }
  if (role.completes) append(recipe.after, {step(Action::measure, Queue::sums)});
  append(recipe.after, {record(Mark::reduced)});
  if (!rests(entry)) return;
  append(recipe.after,
         {step(Action::clear, Queue::sums), record(Mark::cleared), step(Action::merged, Queue::sums)});
}

}  // namespace troupe::core
