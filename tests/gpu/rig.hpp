#pragma once

#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// A device under test, and what tests need besides its interface.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual Device& device() = 0;
  /// Lets the device work until `moment` is set. A minute of real time, or the end of virtual work, is a
  /// failure.
  virtual void reach(std::future<void> moment) = 0;
  /// Occupies the stream until the returned Completion is called. Returns once the task has started.
  virtual Completion block(const Stream& stream) = 0;
  /// What lies in memory of the device, and back: at once, beside all streams of the test.
  virtual void read(ConstBufferView source, void* destination) = 0;
  virtual void write(const void* source, BufferView destination) = 0;
};

/// A kind of device that this program can test.
struct DeviceUnderTest {
  std::string name;
  /// Errc::unavailable where the machine has no such device: then its tests are skipped.
  std::function<core::Result<std::unique_ptr<Rig>>()> make;
  /// Tasks of its streams may be work of the host, given to enqueue() and enqueue_async().
  bool takes_host_work = true;

  friend std::ostream& operator<<(std::ostream& stream, const DeviceUnderTest& device) {
    return stream << device.name;
  }
};

/// All of them; every test program has its own.
std::vector<DeviceUnderTest> devices_under_test();

}  // namespace troupe::gpu
