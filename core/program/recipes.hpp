#pragma once

#include <map>
#include <utility>
#include <vector>

#include "core/program/fold.hpp"
#include "core/program/plan_program.hpp"
#include "core/program/program.hpp"

namespace troupe::core {

/// Says how each entry of a program is carried out. Part of plan_program(): nothing else asks what an entry
/// is in order to decide what to do about it.
class RecipePlanner {
 public:
  /// Recipes are added to `recipes`, equal ones once. Both must outlive it.
  RecipePlanner(const ProgramInputs& inputs, std::vector<Recipe>& recipes);

  /// All entries of a round, of all rounds of a list of passes, or of what follows them. `is_last` says
  /// whether a round is the last one.
  template <class IsLast>
  void assign(std::vector<PlacedEntry>& placed, IsLast is_last) {
    std::map<Key, const ProgramEntry*> reducing;
    std::map<Key, const ProgramEntry*> completing;
    for (const PlacedEntry& one : placed) {
      if (!is_last(one.round) || one.entry.tensor.kind != TensorKind::gradients) continue;
      const Key key{one.entry.tensor.unit, one.entry.tensor.tensor};
      if (is_also_sum(one.entry)) {
        completing[key] = &one.entry;
      } else if (one.entry.operation != CollectiveKind::all_gather) {
        reducing[key] = completing[key] = &one.entry;
      }
    }
    for (PlacedEntry& one : placed) {
      const Key key{one.entry.tensor.unit, one.entry.tensor.tensor};
      const auto is = [&](const std::map<Key, const ProgramEntry*>& those) {
        const auto found = those.find(key);
        return found != those.end() && found->second == &one.entry;
      };
      const Role role{.reduces_last = is(reducing), .completes = is(completing)};
      one.entry.first = number_of(recipe_of(one.entry, role, true));
      const bool sums = one.entry.tensor.kind == TensorKind::gradients;
      one.entry.later = sums ? number_of(recipe_of(one.entry, role, false)) : one.entry.first;
    }
  }

 private:
  using Key = std::pair<int, int>;
  struct Role {
    bool reduces_last = false;  ///< no later reduction brings other lanes
    bool completes = false;     ///< nothing later is added to the tensor's gradients
  };

  int number_of(Recipe recipe);
  Recipe recipe_of(const ProgramEntry& entry, Role role, bool first_round) const;
  Recipe of_parameters(const ProgramEntry& entry) const;
  Recipe of_gathered_sums(const ProgramEntry& entry) const;
  Recipe of_sum_beyond_axes(const ProgramEntry& entry) const;
  Recipe of_exchange(const ProgramEntry& entry, Role role) const;
  Recipe of_reduction(const ProgramEntry& entry, Role role, bool first_round) const;
  void begin_reduction(const ProgramEntry& entry, Recipe& recipe) const;
  void end_reduction(const ProgramEntry& entry, Role role, Recipe& recipe) const;

  const Unit& unit_of(const ProgramEntry& entry) const;
  const TensorClass& class_of(const ProgramEntry& entry) const;
  bool is_ordered() const { return inputs_->numerics == Numerics::ordered; }
  /// The entry brings what is kept between rounds, and is in each of them.
  bool rests(const ProgramEntry& entry) const;
  bool starts_from_full(const ProgramEntry& entry) const;
  bool starts_from_kept(const ProgramEntry& entry) const;

  const ProgramInputs* inputs_;
  std::vector<Recipe>* recipes_;
  bool each_round_;  ///< gradients are reduced in each round
};

/// PR-6, of one program: recipes do what they say in an order in which it can be done.
Result<void> check_recipes(const Program& program);

}  // namespace troupe::core
