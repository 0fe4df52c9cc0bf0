#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace troupe::posix {

/// A function with its own stack that can stop in the middle and continue later, in the same thread: this is
/// how a trainer's blocking loop runs in the simulator, and how one rank computes several parts of a model
/// that wait for each other. Not thread safe.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = 1 << 20);
  /// A fiber that has not ended is dropped with everything on its stack: destructors there do not run.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it yields or ends. Another fiber may call it, and may meanwhile yield itself.
  void resume();
  /// From within the body: returns to resume()'s caller.
  void yield();
  bool has_ended() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::posix
