#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/result.hpp"
#include "gpu/collective/nccl/library.hpp"
#include "gpu/collective/nccl/options.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// A range from ncclMemAlloc, released with ncclMemFree.
class NcclMemory {
 public:
  NcclMemory(std::shared_ptr<const NcclLibrary> library, NcclDevicePort port, BufferView view);
  /// May wait for the device, so nothing on it may need the calling thread, nor the range.
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  BufferView view() const { return view_; }

 private:
  // Shared by all that call NCCL.
  const std::shared_ptr<const NcclLibrary> library_;
  const NcclDevicePort port_;
  const BufferView view_;
};

/// The memory of one device that communicators can register. Thread-safe.
class NcclMemories {
 public:
  /// `device` must outlive it.
  NcclMemories(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port);

  /// Like Device::allocate(). The Buffer shares its range with the communicators that registered it: the
  /// range is freed with the last of them. Errc::unavailable if NCCL provides none.
  core::Result<Buffer> allocate(std::size_t bytes);
  /// The range that contains the view; null if there is none.
  std::shared_ptr<const NcclMemory> find(BufferView view) const;

 private:
  // Shared by all that call NCCL.
  const std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  const NcclDevicePort port_;
  mutable std::mutex mutex_;  // guards ranges_
  // Owned by Buffers and communicators.
  std::vector<std::weak_ptr<const NcclMemory>> ranges_;
};

/// The registrations of a communicator. A list: NCCL is given the address of the handle.
struct NcclRegistration {
  // Shared with the Buffer, which may be released first.
  std::shared_ptr<const NcclMemory> memory;
  void* handle = nullptr;
};
using NcclRegistrations = std::list<NcclRegistration>;

/// Ends a communicator's registrations; if NCCL refuses, they end with it. No running operation may use them.
void deregister_all(const NcclApi& api, NcclComm comm, NcclRegistrations& registrations);

}  // namespace troupe::gpu
