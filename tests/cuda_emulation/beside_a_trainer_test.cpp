// What only the emulated runtime can show of a device beside a trainer; tests/gpu/cuda/beside_a_trainer.cpp
// has the rest.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu/cuda/spin.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

class EmulatedBesideATrainer : public testing::Test {
 protected:
  void SetUp() override { cuda_emulation::reset(); }
  void TearDown() override {
    if (!gives_up_) return;
    // Its tasks end some time after it was given up, on a thread of the machine's.
    const auto patience = std::chrono::steady_clock::now() + 10s;
    while (cuda_emulation::alive().events > 0 && std::chrono::steady_clock::now() < patience)
      std::this_thread::yield();
    cuda_emulation::forget_what_is_alive();
  }

  bool gives_up_ = false;
};

TEST_F(EmulatedBesideATrainer, CaptureIsSpoiledByUnsafeCallsOfAnyThread) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = nullptr;
  std::thread([&] { EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported); }).join();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatedBesideATrainer, MemoryThatIsReleasedIsThereForOthers) {
  constexpr std::size_t kAll = std::size_t{1} << 30;
  const auto device = open_cuda_device({}).value();
  { const Buffer most = device->allocate(kAll / 4 * 3).value(); }

  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kAll / 4 * 3), cudaSuccess) << "as NCCL and cuBLAS allocate";
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(EmulatedBesideATrainer, AStreamThatIsGivenUpCallsNobodyLater) {
  gives_up_ = true;
  const auto device = open_cuda_device({.drain_deadline = std::chrono::seconds(0)}).value();
  auto stream = device->create_stream({.name = "one"}).value();
  const auto other = device->create_stream({.name = "other"}).value();
  const cudaStream_t left = cuda_stream(stream.get()).native();
  std::atomic<bool> told = false;
  Spin spin;
  cuda_stream(stream.get()).run("block", [&](cudaStream_t native) { return launch_spin(&spin, native); });
  stream->notify([&] { told = true; });

  stream.reset();
  std::atomic_ref<std::uint32_t>(spin.released).store(1);
  ASSERT_EQ(cudaStreamSynchronize(left), cudaSuccess);
  // Two that the waiting thread comes to after the first stream's.
  for (int i = 0; i < 2; ++i) {
    std::promise<void> passed;
    other->notify([&] { passed.set_value(); });
    ASSERT_EQ(passed.get_future().wait_for(60s), std::future_status::ready);
  }

  EXPECT_FALSE(told) << "whoever was to be told may be gone";
  EXPECT_EQ(check_usable(*device).error().code, core::Errc::timeout) << "its work may have come late";
  EXPECT_EQ(cudaStreamDestroy(left), cudaSuccess);
}

}  // namespace
}  // namespace troupe::gpu
