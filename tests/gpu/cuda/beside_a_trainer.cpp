// What a trainer that calls CUDA itself must not notice of a device in its process: on a GPU, and over the
// emulated runtime.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "gpu/kernels.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class CudaBesideATrainer : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& each : devices_under_test()) {
      if (!each.name.starts_with("cuda")) continue;
      auto made = each.make();
      if (!made && made.error().code == core::Errc::unavailable) GTEST_SKIP() << made.error().message;
      rig_ = std::move(made).value();
      device_ = &rig_->device();
    }
    ASSERT_NE(device_, nullptr);
    stream_ = device_->create_stream({.name = "one"}).value();
    event_ = device_->create_event().value();
  }

  std::unique_ptr<Rig> rig_;
  Device* device_ = nullptr;
  Stream stream_;
  Event event_;
};

/// A stream of the trainer's own, of which it captures a graph.
class Capture {
 public:
  explicit Capture(cudaStreamCaptureMode mode) {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  ~Capture() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(stream_, &graph);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaBesideATrainer, LetsACaptureGoOnWhateverIsAsked) {
  const auto use = [&] {
    const Buffer there = device_->allocate(400).value();
    const Buffer here = device_->allocate_staging(400).value();
    const auto other = device_->create_stream({.name = "other"}).value();
    device_->observe([](const TaskRecord&) {});
    std::atomic<bool> told = false;
    const Completion release = rig_->block(stream_);
    stream_->notify([&] { told = true; });
    stream_->record(event_.get());
    other->wait(event_.get());
    fill({there.view(), core::DType::f32}, 1, other.get());
    copy(there.view(), here.view(), other.get());
    EXPECT_FALSE(event_->is_complete());
    release();
    EXPECT_TRUE(event_->wait(60s));
    EXPECT_TRUE(other->synchronize(60s));
    EXPECT_TRUE(stream_->synchronize(60s));
    EXPECT_TRUE(told);
    device_->observe({});
    EXPECT_EQ(here.view().as<float>()[99], 1);
  };
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    Capture beside(mode);
    std::thread(use).join();
    EXPECT_EQ(beside.end(), cudaSuccess);

    Capture own(mode);
    use();
    EXPECT_EQ(own.end(), cudaSuccess);
  }
}

TEST_F(CudaBesideATrainer, LeavesAThreadItsCaptureMode) {
  auto mode = cudaStreamCaptureModeThreadLocal;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);

  EXPECT_TRUE(event_->is_complete());
  { const Buffer buffer = device_->allocate(400).value(); }

  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeThreadLocal);
}

TEST_F(CudaBesideATrainer, LeavesNoErrorOfWhatIsNotReady) {
  const Completion release = rig_->block(stream_);
  stream_->record(event_.get());
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"is_complete", [&] { EXPECT_FALSE(event_->is_complete()); }},
      {"wait", [&] { EXPECT_FALSE(event_->wait(20ms)); }},
      {"synchronize", [&] { EXPECT_FALSE(stream_->synchronize(20ms)); }},
      {"allocate", [&] { EXPECT_TRUE(device_->allocate(std::size_t{16} << 20)); }},
      {"observe", [&] { device_->observe([](const TaskRecord&) {}); }},
  };
  for (const auto& [name, call] : calls) {
    call();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << name;
  }
  release();
  ASSERT_TRUE(stream_->synchronize(60s));
  device_->observe({});
}

TEST_F(CudaBesideATrainer, GivesMemoryBackWhenItIsReleased) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  { const Buffer half = device_->allocate(before / 2).value(); }

  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_GE(after + (total / 32), before) << "what stays with the pool is little";
}

}  // namespace
}  // namespace troupe::gpu
