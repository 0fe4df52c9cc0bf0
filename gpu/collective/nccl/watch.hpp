#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/nccl/options.hpp"

namespace troupe::gpu {

/// Something that must be checked while it runs.
class NcclWatched {
 public:
  virtual ~NcclWatched() = default;
  /// Returns whether anything is still running.
  virtual bool look() = 0;
};

/// One thread that checks everything running on a device, every period; it sleeps while nothing runs.
class NcclWatch {
 public:
  /// `make_current` is that of the device's port, for the thread.
  NcclWatch(std::chrono::nanoseconds period, std::function<core::Result<NcclCurrentDevice>()> make_current);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void add(std::weak_ptr<NcclWatched> watched);
  /// Call when something begins to run.
  void wake();

 private:
  void work(std::chrono::nanoseconds period,
            const std::function<core::Result<NcclCurrentDevice>()>& make_current);

  std::mutex mutex_;  // guards watched_, awake_ and stopping_
  std::condition_variable changed_;
  std::vector<std::weak_ptr<NcclWatched>> watched_;
  bool awake_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
