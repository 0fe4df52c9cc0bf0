#include "gpu/collective/rendezvous_memory.hpp"

#include "core/errors.hpp"

namespace troupe::gpu {

core::Result<void> MemoryRendezvous::set(const std::string& key, const std::string& value) {
  {
    std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
  return {};
}

core::Result<std::string> MemoryRendezvous::get(const std::string& key, std::chrono::nanoseconds deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); })) {
    return core::fail(core::Errc::timeout,
                      "rendezvous: expected the key '{}' within {} ms, but no member set it; look at the "
                      "members that did not start",
                      key, std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
  }
  return values_[key];
}

}  // namespace troupe::gpu
