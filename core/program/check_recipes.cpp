#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/errors.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/recipes.hpp"

namespace troupe::core {
namespace {

using Steps = std::vector<RecipeStep>;

/// Marks that something else than an entry records: the trainer's backward, the optimizer, and what cleared
/// the memory before.
bool is_of_others(Mark mark) {
  return mark == Mark::prepared || mark == Mark::updated || mark == Mark::released || mark == Mark::cleared;
}

/// One program's recipes, in the order in which its entries run.
class RecipeOrder {
 public:
  Result<void> launch(const ProgramEntry& entry, const Recipe& recipe) {
    staged_ = false;
    has_delivered_ = false;
    TRY(take(entry, recipe.before));
    TRY(take(entry, recipe.each_chunk));
    TRY(take(entry, recipe.after));
    if (!staged_) return {};
    return fail(Errc::mismatch, "PR-6: {} takes a staging credit and does not give it back", describe(entry));
  }

 private:
  using Tensor = std::tuple<TensorKind, int, int>;

  static bool uses_staging(const RecipeStep& step) {
    return step.from == Place::sent || step.from == Place::arrived || step.to == Place::sent ||
           step.to == Place::arrived;
  }

  Result<void> take(const ProgramEntry& entry, const Steps& steps) {
    auto& marks = marks_[{entry.tensor.kind, entry.tensor.unit, entry.tensor.tensor}];
    for (const RecipeStep& step : steps) {
      switch (step.action) {
        case Action::wait:
          if (is_of_others(step.mark) || marks.contains(step.mark)) break;
          return fail(Errc::mismatch, "PR-6: {} waits for '{}', which nothing before it records",
                      describe(entry), name_of(step.mark));
        case Action::record:
          if (step.mark == Mark::staged && !std::exchange(staged_, false)) {
            return fail(Errc::mismatch, "PR-6: {} gives back a staging credit that it has not taken",
                        describe(entry));
          }
          marks.insert(step.mark);
          break;
        case Action::reserve:
          if (std::exchange(staged_, true)) {
            return fail(Errc::mismatch,
                        "PR-6: {} takes a second staging credit before it has given back the first",
                        describe(entry));
          }
          break;
        case Action::keep:
          has_delivered_ = true;
          break;
        default:
          TRY(move(entry, step));
      }
    }
    return {};
  }

  Result<void> move(const ProgramEntry& entry, const RecipeStep& step) {
    if (uses_staging(step) && !staged_ && !has_delivered_) {
      return fail(Errc::mismatch, "PR-6: {} does '{}' without a staging credit", describe(entry),
                  describe(step));
    }
    return {};
  }

  std::map<Tensor, std::set<Mark>> marks_;
  bool staged_ = false;
  bool has_delivered_ = false;
};

}  // namespace

Result<void> check_recipes(const Program& program) {
  RecipeOrder order;
  Result<void> found;
  for_each_launch(program, [&](const Launch& launch) {
    if (!found) return;
    const auto number =
        static_cast<std::size_t>(launch.round == 0 ? launch.entry->first : launch.entry->later);
    if (number >= program.recipes.size()) {
      found = fail(Errc::internal, "{} has recipe {} of {}", describe(*launch.entry), number,
                   program.recipes.size());
      return;
    }
    found = order.launch(*launch.entry, program.recipes[number]);
  });
  return found;
}

}  // namespace troupe::core
