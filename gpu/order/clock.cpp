#include "gpu/order/clock.hpp"

#include <algorithm>

namespace troupe::gpu {
namespace {

bool is_before(const Moment& moment, LineId line) {
  return moment.line < line;
}

}  // namespace

std::uint64_t OrderClock::tick_of(LineId line) const {
  const auto found = std::lower_bound(moments_.begin(), moments_.end(), line, is_before);
  return found != moments_.end() && found->line == line ? found->tick : 0;
}

void OrderClock::advance(Moment moment) {
  const auto found = std::lower_bound(moments_.begin(), moments_.end(), moment.line, is_before);
  if (found == moments_.end() || found->line != moment.line) {
    moments_.insert(found, moment);
  } else {
    found->tick = std::max(found->tick, moment.tick);
  }
}

bool OrderClock::join(const OrderClock& other) {
  bool is_new = false;
  std::size_t at = 0;
  for (const Moment& moment : other.moments_) {
    while (at < moments_.size() && moments_[at].line < moment.line) ++at;
    if (at == moments_.size() || moments_[at].line != moment.line) {
      moments_.insert(moments_.begin() + static_cast<std::ptrdiff_t>(at), moment);
      is_new = true;
    } else if (moments_[at].tick < moment.tick) {
      moments_[at].tick = moment.tick;
      is_new = true;
    }
  }
  return is_new;
}

void OrderClock::forget(std::span<const LineId> lines) {
  std::erase_if(moments_, [&](const Moment& moment) {
    return std::find(lines.begin(), lines.end(), moment.line) != lines.end();
  });
}

}  // namespace troupe::gpu
