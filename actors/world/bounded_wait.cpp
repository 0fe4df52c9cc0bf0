#include "actors/world/bounded_wait.hpp"

#include <utility>

namespace troupe::actors {

BoundedWait::BoundedWait(std::function<void()> wait) {
  std::promise<void> promise;
  ended_ = promise.get_future();
  thread_ = std::thread([wait = std::move(wait), promise = std::move(promise)]() mutable {
    wait();
    promise.set_value();
  });
}

BoundedWait::~BoundedWait() {
  if (ends_within(std::chrono::milliseconds(0)))
    thread_.join();
  else
    thread_.detach();
}

bool BoundedWait::ends_within(std::chrono::milliseconds patience) const {
  return ended_.wait_for(patience) == std::future_status::ready;
}

}  // namespace troupe::actors
