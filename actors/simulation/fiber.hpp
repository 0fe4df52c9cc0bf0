#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace troupe::actors {

/// A function with its own stack that can stop in the middle and continue later, in the same thread: this is
/// how a trainer's blocking loop runs in the simulator. Not thread safe.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body, std::size_t stack_bytes = 1 << 20);
  /// A fiber that has not ended is dropped with everything on its stack: destructors there do not run.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body until it yields or ends. Not from within a fiber.
  void resume();
  /// From within the body: returns to resume()'s caller.
  void yield();
  bool has_ended() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::actors
