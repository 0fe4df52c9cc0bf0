#include "core/program/unit_order.hpp"

#include <numeric>
#include <string_view>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

Result<void> check_each_once(const std::vector<int>& order, std::string_view pass, int units) {
  constexpr int kNowhere = -1;
  std::vector<int> place_of(static_cast<std::size_t>(units), kNowhere);
  for (std::size_t place = 0; place < order.size(); ++place) {
    const int unit = order[place];
    if (unit < 0 || unit >= units) {
      return fail(Errc::invalid_argument,
                  "the {} order has unit {} at place {}, but there are {} units, numbered from 0", pass, unit,
                  place, units);
    }
    int& known = place_of[static_cast<std::size_t>(unit)];
    if (known != kNowhere) {
      return fail(Errc::invalid_argument,
                  "the {} order has unit {} twice, at places {} and {}; it has each of {} units once", pass,
                  unit, known, place, units);
    }
    known = static_cast<int>(place);
  }
  for (int unit = 0; unit < units; ++unit) {
    if (place_of[static_cast<std::size_t>(unit)] != kNowhere) continue;
    return fail(Errc::invalid_argument, "the {} order lacks unit {}; it has each of {} units once", pass,
                unit, units);
  }
  return {};
}

}  // namespace

Result<UnitOrder> normalised(UnitOrder order, int units) {
  if (order.empty()) return order;
  std::vector<int> numbers(static_cast<std::size_t>(units));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order.forward.empty()) order.forward = numbers;
  TRY(check_each_once(order.forward, "forward", units));
  const std::vector<int> reverse(order.forward.rbegin(), order.forward.rend());
  if (order.backward.empty()) order.backward = reverse;
  TRY(check_each_once(order.backward, "backward", units));
  if (order.forward == numbers && order.backward == reverse) return UnitOrder{};
  return order;
}

Result<void> OrderRecorder::uses(int unit) {
  auto& used = used_.at(static_cast<std::size_t>(unit));
  bool& before = is_backward_ ? used.backward : used.forward;
  if (before) {
    return fail(
        Errc::invalid_argument,
        "unit {} is used again in {}: a step uses each unit once in forward and once in backward; put "
        "what comes between its uses into the same unit",
        unit, is_backward_ ? "backward" : "forward");
  }
  before = true;
  (is_backward_ ? order_.backward : order_.forward).push_back(unit);
  return {};
}

UnitOrder OrderRecorder::order() const {
  UnitOrder order = order_;
  for (std::size_t unit = 0; unit < used_.size(); ++unit) {
    if (!used_[unit].forward) order.forward.push_back(static_cast<int>(unit));
  }
  for (auto unit = order.forward.rbegin(); unit != order.forward.rend(); ++unit) {
    if (!used_[static_cast<std::size_t>(*unit)].backward) order.backward.push_back(*unit);
  }
  return order;
}

}  // namespace troupe::core
