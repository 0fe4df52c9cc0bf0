#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/nccl/disposal.hpp"
#include "gpu/collective/nccl/library.hpp"
#include "gpu/collective/nccl/memory.hpp"
#include "gpu/collective/nccl/options.hpp"
#include "gpu/collective/nccl/watch.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// State shared by all NCCL groups of one device. Thread-safe; must outlive the groups.
class NcclDevice {
 public:
  NcclDevice(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port,
             NcclOptions options);
  ~NcclDevice();

  const std::shared_ptr<const NcclLibrary>& library() const { return library_; }
  Device& device() const { return device_; }
  const NcclDevicePort& port() const { return port_; }
  const NcclOptions& options() const { return options_; }
  NcclDisposal& disposal() { return *disposal_; }
  NcclWatch& watch() { return *watch_; }
  NcclMemories& memories() { return memories_; }
  /// Whether it was requested, and the library supports it.
  bool registers_memory() const;
  void warn(std::string_view line) const;

  /// Held during launches: NCCL refuses launches on one device from two threads, and launches in different
  /// orders on different ranks would wait for each other.
  std::mutex& launches() { return launches_; }

  /// Events are reused and never destroyed before the device's end: destroying them can wait for a kernel
  /// that hangs.
  core::Result<Event> take_event();
  void return_event(Event event);

 private:
  class Reaper;

  // Shared by all that call NCCL.
  const std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  const NcclDevicePort port_;
  const NcclOptions options_;
  NcclMemories memories_;
  std::mutex launches_;
  std::mutex events_mutex_;  // guards events_
  std::vector<Event> events_;
  std::unique_ptr<NcclDisposal> disposal_;
  // Shared with the watch's list, which holds a weak reference.
  std::shared_ptr<Reaper> reaper_;
  std::unique_ptr<NcclWatch> watch_;
};

}  // namespace troupe::gpu
