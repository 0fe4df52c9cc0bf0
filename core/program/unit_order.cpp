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

}  // namespace troupe::core
