#pragma once

#include <memory>
#include <span>

#include "gpu/order/clock.hpp"

namespace troupe::gpu {

/// What has happened before a moment. It travels with messages inside a process. Empty: nothing is known.
struct Past {
  std::shared_ptr<const OrderClock> clock;  // shared by all messages that bring it
};

/// A number that no other line of the process has.
LineId next_line();

/// A place of the host where one thing happens after another: a role, a trainer, an I/O worker, the callbacks
/// of a stream, or by default a thread. Its clock has what it knows to have happened. It knows only what it
/// waited for and what messages told it, so that two of them in one thread, as in the simulator, are as apart
/// as two threads. Not thread safe: it is used by one thread at a time.
class HostLine {
 public:
  /// The innermost of the thread's HostScopes, or the thread's own.
  static HostLine& current();

  const OrderClock& clock() const { return clock_; }
  void join(const OrderClock& clock);
  void join(const Past& past);
  /// Something happens here, after all that it knows of.
  Moment step();
  /// The past of what happens next. Empty while nothing is known.
  Past past() const;
  /// Another line that knows what this one does.
  HostLine branch() const;
  /// Lines that are no more.
  void forget(std::span<const LineId> lines);

 private:
  OrderClock clock_;
  mutable Past past_;  ///< a copy of the clock, made when it is wanted
  LineId id_ = 0;      ///< 0: nothing has happened here
};

/// What this thread does until the end of the scope happens on `line`, after `past`.
class HostScope {
 public:
  HostScope(HostLine& line, const Past& past);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  HostLine* outer_;
};

}  // namespace troupe::gpu
