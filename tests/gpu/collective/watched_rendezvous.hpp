#pragma once

#include <functional>
#include <string>

#include "tests/support/rendezvous_memory.hpp"

namespace troupe::gpu {

/// Calls `watch` with whatever is set before anybody can get it: the moment for a stranger to come first.
class WatchedRendezvous final : public Rendezvous {
 public:
  using Watch = std::function<void(const std::string& key, const std::string& value)>;
  explicit WatchedRendezvous(Watch watch) : watch_(std::move(watch)) {}

  core::Result<void> set(const std::string& key, const std::string& value) override {
    watch_(key, value);
    return memory_.set(key, value);
  }
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override {
    return memory_.get(key, deadline);
  }

 private:
  Watch watch_;
  MemoryRendezvous memory_;
};

}  // namespace troupe::gpu
