#include "tests/gpu/cuda/cuda_rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/checked_device.hpp"
#include "tests/gpu/cuda/spin.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class CudaRig final : public Rig {
 public:
  explicit CudaRig(std::unique_ptr<Device> device)
      : device_(std::move(device)), beside_(device_->create_stream({.name = "test"}).value()) {}

  Device& device() override { return *checked_; }

  void reach(std::future<void> moment) override {
    ASSERT_EQ(moment.wait_for(60s), std::future_status::ready) << "the device did not get there";
  }

  Completion block(const Stream& stream) override {
    spins_.push_back(device_->allocate_staging(sizeof(Spin)).value());
    auto* spin = reinterpret_cast<Spin*>(spins_.back().view().data);
    cuda_stream(stream.get()).run("block", [spin](cudaStream_t native) { return launch_spin(spin, native); });
    std::atomic_ref<std::uint32_t> started(spin->started);
    while (started.load() == 0) std::this_thread::yield();
    return [spin] { std::atomic_ref<std::uint32_t>(spin->released).store(1); };
  }

  void read(ConstBufferView source, void* destination) override {
    if (source.bytes == 0) return;
    const Buffer staging = device_->allocate_staging(source.bytes).value();
    copy(source, staging.view(), beside_.get());
    ASSERT_TRUE(beside_->synchronize(60s));
    std::memcpy(destination, staging.view().data, source.bytes);
  }

  void write(const void* source, BufferView destination) override {
    if (destination.bytes == 0) return;
    const Buffer staging = device_->allocate_staging(destination.bytes).value();
    std::memcpy(staging.view().data, source, destination.bytes);
    copy(staging.view(), destination, beside_.get());
    ASSERT_TRUE(beside_->synchronize(60s));
  }

 private:
  std::unique_ptr<Device> device_;
  /// What the test sees; read() and write() use streams beside it.
  std::unique_ptr<Device> checked_ =
      check_order(*device_, [](const std::string& sentence) { ADD_FAILURE() << sentence; });
  std::vector<Buffer> spins_;
  Stream beside_;
};

}  // namespace

core::Result<std::unique_ptr<Rig>> make_cuda_rig() {
  return std::unique_ptr<Rig>(std::make_unique<CudaRig>(TRY(open_cuda_device({}))));
}

}  // namespace troupe::gpu
