#include "core/program/trainer_point.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr auto kPhaseNames = enum_names<Phase>("round_begin", "forward", "backward", "weights", "round_end",
                                               "finish", "commit", "update", "step_end", "next_forward");

bool is_of_pass(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::weights;
}

}  // namespace

struct StepClock::Listed {
  /// A point outside any pass.
  struct Mark {
    std::int64_t at = 0;
    Phase phase = Phase::round_begin;
    int round = 0;
  };

  std::vector<UnitPass> passes;
  std::vector<std::int64_t> begins;  ///< of each pass
  std::vector<Mark> marks;
  std::vector<std::int64_t> round_begins, round_ends;
  std::vector<std::vector<int>> by_round;  ///< the passes of each
  std::int64_t points = 0;
  bool is_split = false;

  const Mark* mark_at(std::int64_t at) const {
    const auto found = std::lower_bound(marks.begin(), marks.end(), at,
                                        [](const Mark& mark, std::int64_t place) { return mark.at < place; });
    return found != marks.end() && found->at == at ? &*found : nullptr;
  }
  std::size_t pass_at(std::int64_t at) const {
    return static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), at) - begins.begin() - 1);
  }
};

struct StepClock::Ordered {
  UnitOrder unit_at;
  UnitOrder place_of;
};

std::string_view name_of(Phase phase) noexcept {
  return kPhaseNames[phase];
}

bool is_of_unit(Phase phase) noexcept {
  return is_of_pass(phase) || phase == Phase::update || phase == Phase::next_forward;
}

bool is_of_round(Phase phase) noexcept {
  return phase <= Phase::round_end;
}

Phase phase_of(Pass pass) noexcept {
  return pass == Pass::forward ? Phase::forward : pass == Pass::backward ? Phase::backward : Phase::weights;
}

std::string describe(const TrainerPoint& point) {
  const auto round = point.round == 0 ? std::string() : fmt::format(" {:+} rounds", point.round);
  if (!is_of_unit(point.phase)) return std::string(name_of(point.phase)) + round;
  return fmt::format("{} of unit {}{}", name_of(point.phase), point.unit, round);
}

std::string describe(const UnitPass& pass) {
  return fmt::format("{} of units {} to {} in round {}", name_of(pass.kind), pass.first, pass.end - 1,
                     pass.round);
}

bool splits_backward(const std::vector<UnitPass>& passes) {
  return std::any_of(passes.begin(), passes.end(),
                     [](const UnitPass& pass) { return pass.kind == Pass::weights; });
}

TrainerPoint shifted(TrainerPoint point, int units) {
  if (is_of_unit(point.phase)) point.unit += units;
  return point;
}

StepClock::StepClock(int units, int rounds, const UnitOrder& order) : StepClock(units, rounds) {
  if (order.empty()) return;
  const auto places = [](const std::vector<int>& unit_at) {
    std::vector<int> place_of(unit_at.size());
    for (std::size_t place = 0; place < unit_at.size(); ++place) {
      place_of[static_cast<std::size_t>(unit_at[place])] = static_cast<int>(place);
    }
    return place_of;
  };
  ordered_ = std::make_shared<const Ordered>(Ordered{order, {places(order.forward), places(order.backward)}});
}

StepClock::StepClock(int units, int rounds, std::vector<UnitPass> passes) : StepClock(units, rounds) {
  if (passes.empty()) return;
  auto listed = std::make_shared<Listed>();
  const auto count = static_cast<std::size_t>(rounds);
  listed->by_round.resize(count);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    listed->by_round[static_cast<std::size_t>(passes[i].round)].push_back(static_cast<int>(i));
  }
  listed->round_begins.assign(count, -1);
  listed->round_ends.assign(count, -1);
  listed->is_split = splits_backward(passes);
  const auto mark = [&](Phase phase, int round, std::vector<std::int64_t>& where) {
    where[static_cast<std::size_t>(round)] = listed->points;
    listed->marks.push_back({listed->points++, phase, round});
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const UnitPass& pass = passes[i];
    const auto& of_round = listed->by_round[static_cast<std::size_t>(pass.round)];
    if (of_round.front() == static_cast<int>(i)) mark(Phase::round_begin, pass.round, listed->round_begins);
    listed->begins.push_back(listed->points);
    listed->points += pass.end - pass.first;
    if (of_round.back() == static_cast<int>(i)) mark(Phase::round_end, pass.round, listed->round_ends);
  }
  listed->passes = std::move(passes);
  listed_ = std::move(listed);
}

int StepClock::forward_place(int unit) const {
  return ordered_ ? ordered_->place_of.forward[static_cast<std::size_t>(unit)] : unit;
}

int StepClock::forward_unit(int place) const {
  return ordered_ ? ordered_->unit_at.forward[static_cast<std::size_t>(place)] : place;
}

int StepClock::backward_place(int unit) const {
  return ordered_ ? ordered_->place_of.backward[static_cast<std::size_t>(unit)] : units_ - 1 - unit;
}

int StepClock::backward_unit(int place) const {
  return ordered_ ? ordered_->unit_at.backward[static_cast<std::size_t>(place)] : units_ - 1 - place;
}

bool StepClock::is_split() const {
  return listed_ && listed_->is_split;
}

int StepClock::pass_of(const TrainerPoint& point, std::int64_t of_entry) const {
  const std::int64_t round = of_entry + point.round;
  if (!is_of_pass(point.phase) || round < 0 || round >= rounds_ || point.unit < 0 || point.unit >= units_) {
    return -1;
  }
  if (!listed_) {
    if (point.phase == Phase::weights) return -1;
    return static_cast<int>(2 * round + (point.phase == Phase::backward ? 1 : 0));
  }
  for (const int place : listed_->by_round[static_cast<std::size_t>(round)]) {
    const UnitPass& pass = listed_->passes[static_cast<std::size_t>(place)];
    if (phase_of(pass.kind) == point.phase && point.unit >= pass.first && point.unit < pass.end) return place;
  }
  return -1;
}

std::int64_t StepClock::rest() const {
  return listed_ ? listed_->points : rounds_ * round_points();
}

std::int64_t StepClock::at(const TrainerPoint& point, int round) const {
  const std::int64_t begin = round * round_points();
  const std::int64_t rest = this->rest();
  if (listed_ && is_of_round(point.phase)) {
    if (is_of_pass(point.phase)) {
      const auto place = static_cast<std::size_t>(pass_of(point, round));
      CHECK(place < listed_->passes.size(), "a point is in one of the passes");
      const UnitPass& pass = listed_->passes[place];
      const int offset = point.phase == Phase::forward ? point.unit - pass.first : pass.end - 1 - point.unit;
      return listed_->begins[place] + offset;
    }
    const auto& where = point.phase == Phase::round_begin ? listed_->round_begins : listed_->round_ends;
    return where.at(static_cast<std::size_t>(round + point.round));
  }
  switch (point.phase) {
    case Phase::round_begin:
      return begin;
    case Phase::forward:
      return begin + 1 + forward_place(point.unit);
    case Phase::backward:
      return begin + 1 + units_ + backward_place(point.unit);
    case Phase::weights:
      break;  // of lists alone
    case Phase::round_end:
      return begin + round_points() - 1;
    case Phase::finish:
      return rest;
    case Phase::commit:
      return rest + 1;
    case Phase::update:
      return rest + 2 + forward_place(point.unit);
    case Phase::step_end:
      return rest + 2 + units_;
    case Phase::next_forward:
      return rest + 3 + units_ + forward_place(point.unit);
  }
  CHECK(false, "every phase is handled");
}

std::int64_t StepClock::points() const {
  return rest() + 3 + 2 * std::int64_t{units_};
}

int StepClock::round_of(std::int64_t at) const {
  if (listed_ && at < rest()) {
    const auto* mark = listed_->mark_at(at);
    return mark != nullptr ? mark->round : listed_->passes[listed_->pass_at(at)].round;
  }
  const std::int64_t round = at < rest() ? at / round_points() : rounds_;
  return static_cast<int>(round < rounds_ ? round : rounds_ - 1);
}

TrainerPoint StepClock::point(std::int64_t at) const {
  const std::int64_t rest = at - this->rest();
  if (rest < 0 && listed_) {
    if (const auto* mark = listed_->mark_at(at)) return {mark->phase, 0};
    const auto place = listed_->pass_at(at);
    const UnitPass& pass = listed_->passes[place];
    const auto offset = static_cast<int>(at - listed_->begins[place]);
    return {phase_of(pass.kind), pass.kind == Pass::forward ? pass.first + offset : pass.end - 1 - offset};
  }
  if (rest < 0) {
    const auto place = static_cast<int>(at % round_points());
    if (place == 0) return {Phase::round_begin, 0};
    if (place <= units_) return {Phase::forward, forward_unit(place - 1)};
    if (place <= 2 * units_) return {Phase::backward, backward_unit(place - 1 - units_)};
    return {Phase::round_end, 0};
  }
  if (rest == 0) return {Phase::finish, 0};
  if (rest == 1) return {Phase::commit, 0};
  if (rest < 2 + units_) return {Phase::update, forward_unit(static_cast<int>(rest) - 2)};
  if (rest == 2 + units_) return {Phase::step_end, 0};
  return {Phase::next_forward, forward_unit(static_cast<int>(rest) - 3 - units_)};
}

}  // namespace troupe::core
