#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "core/errors.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Rendezvous of ranks that are threads of one process. Thread-safe.
class MemoryRendezvous final : public Rendezvous {
 public:
  core::Result<void> set(const std::string& key, const std::string& value) override {
    {
      std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
    return {};
  }

  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); })) {
      return core::fail(core::Errc::timeout,
                        "rendezvous: expected the key '{}' within {} ms, but no member set it; look at the "
                        "members that did not start",
                        key, std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace troupe::gpu
