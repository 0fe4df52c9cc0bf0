#include "gpu/order/host_line.hpp"

#include <atomic>

namespace troupe::gpu {
namespace {

// Which line a thread works on is a fact of the thread, which all code below must see: streams, events and
// messages are not told who calls.
thread_local HostLine* innermost_line = nullptr;
thread_local HostLine line_of_thread;

}  // namespace

LineId next_line() {
  static std::atomic<LineId> last{0};
  return ++last;
}

HostLine& HostLine::current() {
  return innermost_line != nullptr ? *innermost_line : line_of_thread;
}

void HostLine::join(const OrderClock& clock) {
  if (clock_.join(clock)) past_ = {};
}

void HostLine::join(const Past& past) {
  if (past.clock == nullptr || past.clock == past_.clock || !clock_.join(*past.clock)) return;
  past_ = clock_ == *past.clock ? past : Past{};
}

Moment HostLine::step() {
  if (id_ == 0) id_ = next_line();
  const Moment moment{id_, clock_.tick_of(id_) + 1};
  clock_.advance(moment);
  past_ = {};
  return moment;
}

Past HostLine::past() const {
  // Shared by all messages that are sent before anything more is known.
  if (past_.clock == nullptr && clock_.lines() > 0) past_.clock = std::make_shared<const OrderClock>(clock_);
  return past_;
}

HostLine HostLine::branch() const {
  HostLine line;
  line.clock_ = clock_;
  line.past_ = past_;
  return line;
}

void HostLine::forget(std::span<const LineId> lines) {
  clock_.forget(lines);
  past_ = {};
}

HostScope::HostScope(HostLine& line, const Past& past) : outer_(innermost_line) {
  line.join(past);
  innermost_line = &line;
}

HostScope::~HostScope() {
  innermost_line = outer_;
}

}  // namespace troupe::gpu
