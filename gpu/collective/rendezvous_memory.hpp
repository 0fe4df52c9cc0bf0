#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Rendezvous of ranks that are threads of one process. Thread-safe.
class MemoryRendezvous final : public Rendezvous {
 public:
  core::Result<void> set(const std::string& key, const std::string& value) override;
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override;

 private:
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace troupe::gpu
