#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "gpu/devices.hpp"
#include "gpu/host/host_device.hpp"
#include "gpu/order/checked_device.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/cuda/cuda_rig.hpp"
#include "tests/gpu/manual_timeline.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

void fail_test(const std::string& sentence) {
  ADD_FAILURE() << sentence;
}

/// The rig of a device whose memory is the host's, and whose tasks are work of the host.
class RigInHostMemory : public Rig {
 public:
  Completion block(const Stream& stream) override {
    auto started = std::make_shared<std::promise<Completion>>();
    auto has_started = std::make_shared<std::promise<void>>();
    stream->enqueue_async("block", [started, has_started](Completion completion) {
      started->set_value(std::move(completion));
      has_started->set_value();
    });
    reach(has_started->get_future());
    return started->get_future().get();
  }
  void read(ConstBufferView source, void* destination) override {
    if (source.bytes > 0) std::memcpy(destination, source.data, source.bytes);
  }
  void write(const void* source, BufferView destination) override {
    if (destination.bytes > 0) std::memcpy(destination.data, source, destination.bytes);
  }
};

class HostRig final : public RigInHostMemory {
 public:
  Device& device() override { return *device_; }
  void reach(std::future<void> moment) override {
    ASSERT_EQ(moment.wait_for(60s), std::future_status::ready) << "the device did not get there";
  }

 private:
  std::unique_ptr<Device> device_ = check_order(open_host_device().value(), fail_test);
};

class SimulatedRig final : public RigInHostMemory {
 public:
  Device& device() override { return *device_; }
  void reach(std::future<void> moment) override {
    while (moment.wait_for(0s) != std::future_status::ready) {
      ASSERT_TRUE(timeline_.step()) << "the device did not get there";
    }
  }

 private:
  ManualTimeline timeline_;
  std::unique_ptr<Device> device_ = check_order(
      std::make_unique<SimulatedDevice>(timeline_, SimulatedDeviceOptions{.bytes_per_second = 1e9}),
      fail_test);
};

template <class RigOf>
core::Result<std::unique_ptr<Rig>> make() {
  return std::unique_ptr<Rig>(std::make_unique<RigOf>());
}

}  // namespace

std::vector<DeviceUnderTest> devices_under_test() {
  std::vector<DeviceUnderTest> devices = {{"host", make<HostRig>}, {"simulated", make<SimulatedRig>}};
#ifdef TROUPE_HAS_CUDA
  devices.push_back({"cuda", make_cuda_rig, false});
#endif
  return devices;
}

}  // namespace troupe::gpu
