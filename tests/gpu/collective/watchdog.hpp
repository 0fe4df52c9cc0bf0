#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace troupe::gpu {

/// Fails a test that has not ended after half a minute, and ends its process: threads that wait for ever
/// would keep it from ending by itself. For tests of deadlines and aborts, whose operations without them
/// would run for a minute or for ever.
class Watchdog {
 public:
  Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

 private:
  void watch();

  std::mutex mutex_;  // guards is_over_
  bool is_over_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace troupe::gpu
