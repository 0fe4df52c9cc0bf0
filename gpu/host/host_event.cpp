#include "gpu/host/host_event.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {

bool HostEvent::is_complete() const {
  const auto marker = latest();
  return marker == nullptr || marker->is_reached();
}

core::Result<void> HostEvent::wait(std::chrono::nanoseconds deadline) {
  const auto marker = latest();
  if (marker == nullptr || marker->wait_for(deadline)) return {};
  return core::fail(
      core::Errc::timeout,
      "expected an event to complete within {} ms, but work recorded before it still runs; look at the "
      "stream's trace for the task that does not end",
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
}

std::shared_ptr<Marker> HostEvent::latest() const {
  std::lock_guard lock(mutex_);
  return latest_;
}

void HostEvent::move_to(std::shared_ptr<Marker> marker) {
  std::lock_guard lock(mutex_);
  latest_ = std::move(marker);
}

}  // namespace troupe::gpu
