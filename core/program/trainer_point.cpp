#include "core/program/trainer_point.hpp"

#include <fmt/format.h>

#include <array>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr std::array<std::string_view, 9> kPhaseNames{"round_begin", "forward",  "backward",
                                                      "round_end",   "finish",   "commit",
                                                      "update",      "step_end", "next_forward"};

}  // namespace

std::string_view name_of(Phase phase) noexcept {
  return kPhaseNames[static_cast<std::size_t>(phase)];
}

bool is_of_unit(Phase phase) noexcept {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::update ||
         phase == Phase::next_forward;
}

bool is_of_round(Phase phase) noexcept {
  return phase <= Phase::round_end;
}

std::string describe(const TrainerPoint& point) {
  if (!is_of_unit(point.phase)) return std::string(name_of(point.phase));
  return fmt::format("{} of unit {}", name_of(point.phase), point.unit);
}

TrainerPoint shifted(TrainerPoint point, int units) {
  if (is_of_unit(point.phase)) point.unit += units;
  return point;
}

std::int64_t StepClock::at(const TrainerPoint& point, int round) const {
  const std::int64_t begin = round * round_points();
  const std::int64_t rest = rounds_ * round_points();
  switch (point.phase) {
    case Phase::round_begin:
      return begin;
    case Phase::forward:
      return begin + 1 + point.unit;
    case Phase::backward:
      return begin + 2 * std::int64_t{units_} - point.unit;
    case Phase::round_end:
      return begin + round_points() - 1;
    case Phase::finish:
      return rest;
    case Phase::commit:
      return rest + 1;
    case Phase::update:
      return rest + 2 + point.unit;
    case Phase::step_end:
      return rest + 2 + units_;
    case Phase::next_forward:
      return rest + 3 + units_ + point.unit;
  }
  CHECK(false, "every phase is handled");
}

std::int64_t StepClock::points() const {
  return rounds_ * round_points() + 3 + 2 * std::int64_t{units_};
}

int StepClock::round_of(std::int64_t at) const {
  const std::int64_t round = at / round_points();
  return static_cast<int>(round < rounds_ ? round : rounds_ - 1);
}

TrainerPoint StepClock::point(std::int64_t at) const {
  const std::int64_t rest = at - rounds_ * round_points();
  if (rest < 0) {
    const auto place = static_cast<int>(at % round_points());
    if (place == 0) return {Phase::round_begin, 0};
    if (place <= units_) return {Phase::forward, place - 1};
    if (place <= 2 * units_) return {Phase::backward, 2 * units_ - place};
    return {Phase::round_end, 0};
  }
  if (rest == 0) return {Phase::finish, 0};
  if (rest == 1) return {Phase::commit, 0};
  if (rest < 2 + units_) return {Phase::update, static_cast<int>(rest) - 2};
  if (rest == 2 + units_) return {Phase::step_end, 0};
  return {Phase::next_forward, static_cast<int>(rest) - 3 - units_};
}

}  // namespace troupe::core
