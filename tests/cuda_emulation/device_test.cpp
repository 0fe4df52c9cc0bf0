#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/cuda/device_clock.hpp"
#include "gpu/cuda/event_pool.hpp"
#include "gpu/kernels.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/gpu/cuda/spin.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class EmulatedCuda : public testing::Test {
 protected:
  void SetUp() override { cuda_emulation::reset(); }

  /// Opens a device whose failure failure() waits for.
  std::unique_ptr<Device> open(CudaOptions options = {}) {
    options.on_failure = [this](const core::Error& error) { failed_.set_value(error); };
    return open_cuda_device(std::move(options)).value();
  }
  core::Error failure() {
    auto failed = failed_.get_future();
    EXPECT_EQ(failed.wait_for(60s), std::future_status::ready);
    return failed.get();
  }

  std::promise<core::Error> failed_;
};

TEST_F(EmulatedCuda, WithoutADriverTheErrorSaysSo) {
  cuda_emulation::remove_driver();

  const auto device = open_cuda_device({});

  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, core::Errc::unavailable);
  EXPECT_THAT(device.error().message, HasSubstr("expected NVIDIA's driver for the CUDA 13.0 runtime"));
}

TEST_F(EmulatedCuda, WithoutAGpuTheErrorSaysWhereToLook) {
  cuda_emulation::set_device_count(0);

  const auto devices = cuda_devices();

  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code, core::Errc::unavailable);
  EXPECT_THAT(devices.error().message, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(EmulatedCuda, ADeviceThatIsNotThereIsNotFound) {
  cuda_emulation::set_device_count(2);

  const auto device = open_cuda_device({.device = 2});

  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, core::Errc::not_found);
  EXPECT_THAT(device.error().message, HasSubstr("expected GPU 2, but this process sees 2"));
}

TEST_F(EmulatedCuda, DescribesItself) {
  EXPECT_EQ(open()->description(),
            "cuda:0, Emulated GPU, compute capability 9.0, 4 multiprocessors, 1.0 GiB, at 0000:01:00");
}

TEST_F(EmulatedCuda, DeviceIsUsedWhateverTheThreadsCurrentOneIs) {
  cuda_emulation::set_device_count(2);
  const auto second = open({.device = 1});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const auto stream = second->create_stream({.name = "one"}).value();
  const Buffer buffer = second->allocate(4000).value();

  fill({buffer.view(), core::DType::f32}, 1, stream.get());
  ASSERT_TRUE(stream->synchronize(60s));

  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0) << "the caller's device, which it uses, is its own again";
}

TEST_F(EmulatedCuda, NoOtherDeviceGetsAContext) {
  cuda_emulation::set_device_count(2);
  const auto play = [&] {
    const auto second = open({.device = 1});
    second->observe([](const TaskRecord&) {});
    const Buffer there = second->allocate(4000).value();
    const Buffer here = second->allocate_staging(4000).value();
    const auto stream = second->create_stream({.name = "one"}).value();
    const auto event = second->create_event().value();
    const auto work = [&] {
      fill({there.view(), core::DType::f32}, 1, stream.get());
      copy(there.view(), here.view(), stream.get());
      stream->record(event.get());
    };
    work();
    std::thread([&] { EXPECT_TRUE(event->wait(60s)); }).join();
    std::thread([&] { work(); }).join();
    std::thread([&] { EXPECT_TRUE(stream->synchronize(60s)); }).join();
  };

  // A thread that has not used CUDA has device 0 as its current one.
  std::thread(play).join();

  EXPECT_EQ(cuda_emulation::contexts(), std::set<int>{1});
}

TEST_F(EmulatedCuda, EveryCallOfOpeningMayFailAndLeaksNothing) {
  for (const char* call : {"cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaMemPoolCreate",
                           "cudaMemPoolSetAttribute", "cudaStreamCreateWithPriority"}) {
    cuda_emulation::reset();
    cuda_emulation::fail_call(call, 1, cudaErrorUnknown);

    const auto device = open_cuda_device({});

    ASSERT_FALSE(device) << call;
    EXPECT_EQ(device.error().code, core::Errc::internal);
    EXPECT_THAT(device.error().message, HasSubstr(std::string("expected ") + call + " on device 0"));
  }
}

TEST_F(EmulatedCuda, DeviceWithoutKernelsIsRefusedWhenOpened) {
  cuda_emulation::fail_call("cudaLaunchKernel", 1, cudaErrorNoKernelImageForDevice);

  const auto device = open_cuda_device({});

  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, core::Errc::unavailable);
  EXPECT_THAT(device.error().message, HasSubstr("expected fill on device 0"));
  EXPECT_THAT(device.error().message, HasSubstr("-DCMAKE_CUDA_ARCHITECTURES"));
}

TEST_F(EmulatedCuda, AfterOpeningNoKernelLaunchIsTheFirst) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const Buffer buffer = device->allocate(4096).value();
  const auto asked = cuda_emulation::calls("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const Elements a{buffer.view().subview(0, 1024), core::DType::f32};
  const Elements b{buffer.view().subview(1024, 512), core::DType::f16};

  sgd_step({}, {.gradient = b, .master = a.view, .parameter = {}}, {}, stream.get());
  adam_step({}, 1, {.gradient = b, .master = a.view, .parameter = {}},
            {buffer.view().subview(2048, 1024), buffer.view().subview(3072, 1024)}, stream.get());
  accumulate(b, a, stream.get());
  cast(a, b, stream.get());
  unpack(a.view, {buffer.view().subview(2048, 1024)}, stream.get());
  raise_to_largest(a, buffer.view().subview(2048, 4), stream.get());
  ASSERT_TRUE(stream->synchronize(60s));

  EXPECT_EQ(cuda_emulation::calls("cudaOccupancyMaxActiveBlocksPerMultiprocessor"), asked);
}

TEST_F(EmulatedCuda, GridHasNoMoreRowsThanGpusAllow) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  void (*const nothing)(int) = [](int) {};
  int argument = 0;
  void* arguments[] = {&argument};
  const auto launched = [&](dim3 grid) {
    const auto native = cuda_stream(stream.get()).native();
    return cudaLaunchKernel(nothing, grid, dim3(1), arguments, 0, native);
  };

  EXPECT_EQ(launched(dim3(1, 65535)), cudaSuccess);
  EXPECT_EQ(launched(dim3(1, 65536)), cudaErrorInvalidValue);
  EXPECT_EQ(launched(dim3(1, 1, 2)), cudaErrorInvalidValue);
  EXPECT_EQ(launched(dim3(0x8000'0000)), cudaErrorInvalidValue);
}

TEST_F(EmulatedCuda, MissingMemoryIsReportedWithItsBytes) {
  cuda_emulation::set_memory_bytes(1 << 20);
  const auto device = open();
  const Buffer half = device->allocate(1 << 19).value();

  const auto more = device->allocate((1 << 19) + 1);

  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, core::Errc::out_of_memory);
  EXPECT_THAT(more.error().message, HasSubstr("expected 524289 bytes on device 0"));
  EXPECT_TRUE(device->allocate(1 << 19)) << "the failure is not the device's";
}

TEST_F(EmulatedCuda, StagingMemoryHasABudgetAndIsPinnedOnce) {
  const auto device = open({.staging_bytes = 3000});
  for (int round = 0; round < 10; ++round) {
    const Buffer one = device->allocate_staging(1000).value();
    const Buffer two = device->allocate_staging(1000).value();
    std::memset(one.view().data, 1, 1000);
  }
  EXPECT_EQ(cuda_emulation::calls("cudaHostAlloc"), 2U);

  const Buffer large = device->allocate_staging(3000).value();
  EXPECT_EQ(cuda_emulation::alive().pinned_bytes, 3000U) << "blocks nobody has made room";
  const auto more = device->allocate_staging(1);

  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, core::Errc::out_of_memory);
  EXPECT_THAT(more.error().message, HasSubstr("3000 of its 3000 bytes are in use"));
}

TEST_F(EmulatedCuda, WarmedUpMakesNothingAndNoCopyBlocks) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const auto event = device->create_event().value();
  const Buffer there = device->allocate(4000).value();
  const Buffer here = device->allocate_staging(4000).value();
  const auto step = [&] {
    copy(here.view(), there.view(), stream.get());
    scale({there.view(), core::DType::f32}, 2, stream.get());
    stream->record(event.get());
    stream->wait(event.get());
    copy(there.view(), here.view(), stream.get());
    ASSERT_TRUE(stream->synchronize(60s));
    ASSERT_TRUE(event->wait(60s));
  };
  step();
  const auto made = [] {
    return cuda_emulation::calls("cudaEventCreateWithFlags") + cuda_emulation::calls("cudaHostAlloc") +
           cuda_emulation::calls("cudaMallocFromPoolAsync") +
           cuda_emulation::calls("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  };
  const auto before = made();

  for (int i = 0; i < 20; ++i) step();

  EXPECT_EQ(made(), before);
  EXPECT_EQ(cuda_emulation::pageable_copies(), 0U);
}

TEST_F(EmulatedCuda, CopiesOfPageableMemoryArriveToo) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const Buffer there = device->allocate(3).value();
  const std::string text = "abc";
  std::string found = "...";

  copy({reinterpret_cast<const std::byte*>(text.data()), 3}, there.view(), stream.get());
  copy(there.view(), {reinterpret_cast<std::byte*>(found.data()), 3}, stream.get());
  ASSERT_TRUE(stream->synchronize(60s));

  EXPECT_EQ(found, text);
  EXPECT_EQ(cuda_emulation::pageable_copies(), 2U);
}

TEST_F(EmulatedCuda, UrgencyBecomesCudasNumbersWhichFall) {
  const auto device = open();
  std::vector<int> found;
  for (const int priority : {-1, 0, 1, 100}) {
    const auto stream = device->create_stream({.name = "one", .priority = priority}).value();
    found.push_back(cuda_emulation::priority_of(cuda_stream(stream.get()).native()));
  }
  EXPECT_EQ(found, (std::vector<int>{0, 0, -1, -5})) << "0 is what streams have that ask for nothing";
}

TEST_F(EmulatedCuda, RefusesWorkOfTheHostOnAStream) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  EXPECT_DEATH(stream->enqueue("body", {}, [] {}), "a CUDA stream runs kernels");
  EXPECT_DEATH(stream->enqueue_async("start", [](const Completion&) {}), "a CUDA stream runs kernels");
}

TEST_F(EmulatedCuda, FailedLaunchEndsEveryWaitAndNotifiesNobody) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const auto event = device->create_event().value();
  const Buffer buffer = device->allocate(400).value();
  cuda_emulation::fail_call("cudaLaunchKernel", 2, cudaErrorLaunchFailure);
  std::atomic<bool> told_before = false;
  std::atomic<bool> told_after = false;

  fill({buffer.view(), core::DType::f32}, 1, stream.get());
  ASSERT_TRUE(stream->synchronize(60s));
  stream->notify([&] { told_before = true; });
  ASSERT_TRUE(stream->synchronize(60s));
  scale({buffer.view(), core::DType::f32}, 1, stream.get());
  stream->notify([&] { told_after = true; });
  stream->record(event.get());

  const core::Error error = failure();
  EXPECT_THAT(error.message, HasSubstr("expected scale on device 0 to succeed"));
  const auto synchronized = stream->synchronize(60s);
  ASSERT_FALSE(synchronized);
  EXPECT_EQ(synchronized.error(), error);
  const auto waited = event->wait(60s);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error(), error);
  EXPECT_FALSE(event->is_complete());
  EXPECT_FALSE(device->allocate(1));
  EXPECT_TRUE(told_before);
  EXPECT_FALSE(told_after) << "what was to run before it did not";
}

TEST_F(EmulatedCuda, BrokenDeviceEndsOutstandingWaits) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const Buffer buffer = device->allocate(400).value();
  std::atomic<bool> told = false;

  cuda_emulation::fail_call("cudaEventQuery", 1, cudaErrorIllegalAddress);
  stream->notify([&] { told = true; });

  const core::Error error = failure();
  EXPECT_THAT(error.message, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_FALSE(stream->synchronize(60s));
  EXPECT_FALSE(told);
  cuda_emulation::break_device(cudaErrorIllegalAddress);
  fill({buffer.view(), core::DType::f32}, 1, stream.get());
  EXPECT_FALSE(device->create_stream({.name = "two"}));
}

TEST_F(EmulatedCuda, EveryCallMayFailAndTheDeviceSaysWhich) {
  for (const char* call :
       {"cudaEventRecord", "cudaStreamWaitEvent", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchKernel"}) {
    cuda_emulation::reset();
    failed_ = {};
    const auto device = open();
    const auto stream = device->create_stream({.name = "one"}).value();
    const auto event = device->create_event().value();
    const Buffer buffer = device->allocate(400).value();
    cuda_emulation::fail_call(call, 1, cudaErrorUnknown);

    stream->record(event.get());
    stream->wait(event.get());
    zero(buffer.view().subview(0, 200), stream.get());
    copy(buffer.view().subview(0, 200), buffer.view().subview(200, 200), stream.get());
    fill({buffer.view(), core::DType::f32}, 1, stream.get());
    stream->notify([] {});
    stream->notify([] {});
    const auto synchronized = stream->synchronize(60s);

    ASSERT_FALSE(synchronized) << call;
    EXPECT_EQ(failure(), synchronized.error());
  }
}

TEST_F(EmulatedCuda, AnEventThatCannotBeMadeIsAnError) {
  const auto device = open();
  cuda_emulation::fail_call("cudaEventCreateWithFlags", 1, cudaErrorUnknown);

  // The pool has some that opening left there.
  std::vector<Event> held;
  auto event = device->create_event();
  while (event && held.size() < 100) {
    held.push_back(std::move(*event));
    event = device->create_event();
  }

  ASSERT_FALSE(event);
  EXPECT_THAT(event.error().message, HasSubstr("expected cudaEventCreateWithFlags on device 0"));
}

TEST_F(EmulatedCuda, FailureWithinAllocationGivesTheMemoryBack) {
  const auto device = open();
  cuda_emulation::fail_call("cudaMemsetAsync", 1, cudaErrorUnknown);

  EXPECT_FALSE(device->allocate(1000));

  EXPECT_TRUE(device->allocate(1000));
}

TEST_F(EmulatedCuda, TracesTellTimesOfTheHostsClock) {
  const auto device = open();
  const auto stream = device->create_stream({.name = "one"}).value();
  const Buffer buffer = device->allocate(400).value();
  std::atomic<int> tasks = 0;
  std::atomic<std::int64_t> latest_end = 0;
  device->observe([&](const TaskRecord& record) {
    EXPECT_GE(record.begin.count(), latest_end.load());
    EXPECT_LE(record.begin, record.end);
    latest_end = record.end.count();
    ++tasks;
  });

  for (int i = 0; i < 50; ++i) {
    const DeviceTime before = device->now();
    fill({buffer.view(), core::DType::f32}, 1, stream.get());
    ASSERT_TRUE(stream->synchronize(60s));
    EXPECT_LE(before.count(), latest_end.load());
    EXPECT_LE(latest_end.load(), device->now().count());
  }

  EXPECT_EQ(tasks, 50);
  device->observe({});
}

TEST_F(EmulatedCuda, AProfilerSeesWhatIsEnqueuedOnEachStream) {
  cuda_emulation::attach_profiler();
  const auto device = open();
  const auto one = device->create_stream({.name = "one"}).value();
  const auto two = device->create_stream({.name = "two"}).value();
  const Buffer buffer = device->allocate(400).value();
  (void)cuda_emulation::take_ranges();

  fill({buffer.view(), core::DType::f32}, 1, one.get());
  zero(buffer.view(), two.get());
  {
    const core::ProfiledScope outer(device->profiler(), "trainer", "step 3");
    const core::ProfiledScope inner(device->profiler(), "trainer", "forward");
  }
  for (const auto& stream : {one.get(), two.get()}) ASSERT_TRUE(stream->synchronize(60s));

  EXPECT_THAT(cuda_emulation::take_ranges(),
              testing::ElementsAre("troupe.one: fill", "troupe.two: zero", "troupe.trainer: forward",
                                   "troupe.trainer: step 3"));
  cuda_emulation::detach_profiler();
}

TEST_F(EmulatedCuda, WithoutAProfilerThereAreNoRanges) {
  EXPECT_EQ(open()->profiler(), nullptr);
  const core::ProfiledScope nothing(nullptr, "trainer", "step 3");
}

#ifdef __SANITIZE_ADDRESS__
TEST_F(EmulatedCuda, HostCodeThatTouchesDeviceMemoryIsFound) {
  const auto device = open();
  const Buffer buffer = device->allocate(400).value();
  EXPECT_DEATH(std::memset(buffer.view().data, 0, 1), "use-after-poison");
}
#endif

TEST_F(EmulatedCuda, ClockIsNotTiedToAnEndlessStreamsDevice) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  Spin spin;
  ASSERT_EQ(launch_spin(&spin, stream), cudaSuccess);
  {
    EventPool events(0, EventPool::Timing::with);
    DeviceClock clock(0);

    const auto hung = clock.set(events, stream, 0ns);
    const bool is_set = clock.is_set();
    std::atomic_ref<std::uint32_t>(spin.released).store(1);
    const auto idle = clock.set(events, stream, 60s);

    ASSERT_FALSE(hung);
    EXPECT_EQ(hung.error().code, core::Errc::timeout);
    EXPECT_THAT(hung.error().message, HasSubstr("expected an event on an idle stream of device 0"));
    EXPECT_FALSE(is_set);
    EXPECT_TRUE(idle);
    EXPECT_TRUE(clock.is_set());
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace troupe::gpu
