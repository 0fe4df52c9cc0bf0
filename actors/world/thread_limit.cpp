#include "actors/world/thread_limit.hpp"

#include <stdlib.h>

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// With its first allocation a thread may reserve addresses for many more, which then lack for the stacks of
/// others. Threads that come later take them over.
void allocate_once() {
  void* volatile something = ::malloc(1);
  ::free(something);
}

}  // namespace

core::Result<void> check_threads(int count) {
  // The threads wait until it is gone.
  std::promise<void> all_are_there;
  const auto may_end = all_are_there.get_future().share();
  std::vector<std::jthread> threads;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([may_end] {
        allocate_once();
        may_end.wait();
      });
    }
  } catch (const std::system_error& error) {
    all_are_there.set_value();
    return core::fail(core::Errc::unavailable,
                      "a rank needs {} more threads, and the system has only {} ({}); raise the limit of "
                      "threads (ulimit -u, or pids.max of the control group) or of memory (ulimit -v), or "
                      "start fewer ranks",
                      count, threads.size(), error.code().message());
  }
  all_are_there.set_value();
  return {};
}

}  // namespace troupe::actors
