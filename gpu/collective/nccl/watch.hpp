#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::gpu {

/// Something that must be looked at while it runs.
class NcclWatched {
 public:
  virtual ~NcclWatched() = default;
  /// Says whether anything still runs.
  virtual bool look() = 0;
};

/// One thread which looks at everything that runs on a device, every period; it sleeps while nothing does.
class NcclWatch {
 public:
  explicit NcclWatch(std::chrono::nanoseconds period);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(std::weak_ptr<NcclWatched> watched);
  /// Something began to run.
  void wake();

 private:
  void work(std::chrono::nanoseconds period);

  std::mutex mutex_;  // guards watched_, awake_ and stopping_
  std::condition_variable changed_;
  std::vector<std::weak_ptr<NcclWatched>> watched_;
  bool awake_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
