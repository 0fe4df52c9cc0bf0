#include "core/program/passes.hpp"

#include <array>
#include <optional>

#include "core/errors.hpp"
#include "core/program/repeats.hpp"

namespace troupe::core {
std::vector<PassRun> fold(const std::vector<UnitPass>& passes) {
  std::vector<PassRun> runs;
  bool is_single = false;  // the last run consists of passes that do not repeat
  const auto step = [](const UnitPass& a, const UnitPass& b) { return b.round - a.round; };
  const auto is_advanced = [&passes](std::size_t earlier, std::size_t later, int rounds) {
    UnitPass pass = passes[earlier];
    pass.round += rounds;
    return pass == passes[later];
  };
  for (std::size_t first = 0; first < passes.size();) {
    const auto repeat = longest_repeat(passes, first, kLongestSteadyState, step, is_advanced);
    const auto begin = passes.begin() + static_cast<std::ptrdiff_t>(first);
    const bool joins = is_single && repeat.times == 1;
    if (!joins) runs.push_back({{}, static_cast<int>(repeat.times), repeat.step});
    auto& into = runs.back().passes;
    into.insert(into.end(), begin, begin + static_cast<std::ptrdiff_t>(repeat.period));
    is_single = repeat.times == 1;
    first += repeat.period * repeat.times;
  }
  return runs;
}

std::vector<UnitPass> unfold(const std::vector<PassRun>& runs) {
  std::vector<UnitPass> passes;
  for (const PassRun& run : runs) {
    for (int time = 0; time < run.times; ++time) {
      for (UnitPass pass : run.passes) {
        pass.round += time * run.round_step;
        passes.push_back(pass);
      }
    }
  }
  return passes;
}

Result<void> check_passes(const std::vector<UnitPass>& passes, int units, int rounds) {
  const bool is_split = splits_backward(passes);
  // The progress of a unit in a round: the pass that comes next.
  std::vector<std::optional<Pass>> next(static_cast<std::size_t>(units) * static_cast<std::size_t>(rounds),
                                        Pass::forward);
  std::vector<int> added(static_cast<std::size_t>(units), 0);  // rounds whose gradients were added
  for (const UnitPass& pass : passes) {
    if (pass.round < 0 || pass.round >= rounds || pass.first < 0 || pass.first >= pass.end ||
        pass.end > units) {
      return fail(Errc::invalid_argument,
                  "a list of passes has {}; passes are forward, backward or weights of some of {} units in "
                  "one of {} rounds",
                  describe(pass), units, rounds);
    }
    for (int unit = pass.first; unit < pass.end; ++unit) {
      auto& wanted = next[static_cast<std::size_t>(pass.round) * static_cast<std::size_t>(units) +
                          static_cast<std::size_t>(unit)];
      if (wanted != pass.kind) {
        return fail(Errc::invalid_argument, "a list of passes has {} where {} of unit {} comes next",
                    describe(pass), wanted ? name_of(*wanted) : "nothing", unit);
      }
      const bool adds = pass.kind == gradient_pass(is_split);
      int& rounds_added = added[static_cast<std::size_t>(unit)];
      if (adds && rounds_added++ != pass.round) {
        return fail(Errc::invalid_argument,
                    "a list of passes has {} before round {} of unit {}; gradients are added in the order of "
                    "rounds",
                    describe(pass), rounds_added - 1, unit);
      }
      if (adds) {
        wanted.reset();
      } else {
        wanted = pass.kind == Pass::forward ? Pass::backward : Pass::weights;
      }
    }
  }
  for (int unit = 0; unit < units; ++unit) {
    if (added[static_cast<std::size_t>(unit)] == rounds) continue;
    return fail(Errc::invalid_argument,
                "a list of passes adds to the gradients of unit {} in {} of {} rounds; every round goes "
                "through every unit",
                unit, added[static_cast<std::size_t>(unit)], rounds);
  }
  return {};
}

}  // namespace troupe::core
