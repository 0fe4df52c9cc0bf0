#include "gpu/cuda/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <system_error>
#include <utility>

#include "core/errors.hpp"
#include "gpu/cuda/cuda_context.hpp"
#include "gpu/cuda/cuda_event.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/cuda/memory_pool.hpp"
#include "gpu/cuda/status.hpp"
#include "gpu/cuda/warm_up.hpp"
#include "gpu/host/host_stream.hpp"
#include "posix/run_delay.hpp"

namespace troupe::gpu {
namespace {

/// CUDA's versions are 1000 * major + 10 * minor.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

core::Result<CudaDeviceInfo> describe(int index) {
  cudaDeviceProp properties{};
  TRY(cuda_result(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", index));
  CudaDeviceInfo info;
  info.index = index;
  info.name = properties.name;
  info.pci_address = fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                                 properties.pciDeviceID);
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  int floats_per_double = 0;
  TRY(cuda_result(
      cudaDeviceGetAttribute(&floats_per_double, cudaDevAttrSingleToDoublePrecisionPerfRatio, index),
      "cudaDeviceGetAttribute", index));
  info.has_fast_doubles = floats_per_double <= 4;
  info.memory_bytes = properties.totalGlobalMem;
  return info;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(CudaOptions options, CudaDeviceInfo info)
      : context_(std::move(options), std::move(info)), staging_(context_, context_.options.staging_bytes) {}

  core::Result<void> open() {
    memory_ = TRY(MemoryPool::create(context_));
    return warm_up(context_, *memory_);
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  bool is_host_memory() const override { return false; }

  std::string description() const override {
    const auto& info = context_.info;
    return fmt::format("cuda:{}, {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB, at {}",
                       info.index, info.name, info.major, info.minor, info.multiprocessors,
                       static_cast<double>(info.memory_bytes) / (1 << 30), info.pci_address);
  }

  core::Result<Buffer> allocate(std::size_t bytes) override { return memory_->allocate(bytes); }

  core::Result<Buffer> allocate_staging(std::size_t bytes) override { return staging_.allocate(bytes); }

  core::Result<Stream> create_stream(StreamOptions options) override {
    return CudaStream::create(context_, std::move(options));
  }

  core::Result<Event> create_event() override {
    return std::make_unique<CudaEvent>(context_, TRY(context_.events.take()));
  }

  DeviceTime now() const override { return host_now(); }
  DeviceTime run_delay() const override { return posix::run_delay(); }

  void observe(TaskObserver observer) override {
    if (observer && !context_.clock.is_set()) {
      const DeviceGuard guard(context_.device());
      const auto deadline = context_.options.drain_deadline;
      if (!context_.check(context_.clock.set(context_.timing_events, memory_->stream(), deadline))) return;
    }
    context_.observer.set(std::move(observer));
  }

  core::Profiler* profiler() override { return context_.profiler.get(); }

  core::Result<void> check_usable() const {
    TRY(context_.health());
    const int given_up = context_.given_up;
    if (given_up == 0) return {};
    return core::fail(
        core::Errc::timeout,
        "expected nothing to run on device {} any more, but the work of {} streams did not end, "
        "and may write memory that others have by now",
        context_.device(), given_up);
  }

 private:
  CudaContext context_;
  StagingPool staging_;
  std::unique_ptr<MemoryPool> memory_;
};

}  // namespace

core::Result<std::vector<CudaDeviceInfo>> cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (status == cudaErrorInsufficientDriver && driver == 0) {
    (void)cudaGetLastError();
    return core::fail(core::Errc::unavailable,
                      "expected NVIDIA's driver for the CUDA {} runtime, but this machine has none; install "
                      "it (libcuda.so.1), or train on the host device",
                      version_text(runtime));
  }
  if (status == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return core::fail(
        core::Errc::unavailable,
        "expected a driver for the CUDA {} runtime, but this machine's is for CUDA {}; install a "
        "newer driver",
        version_text(runtime), version_text(driver));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    return core::fail(core::Errc::unavailable,
                      "expected a GPU, but the driver (CUDA {}) shows this process none; look at "
                      "CUDA_VISIBLE_DEVICES and at nvidia-smi, or train on the host device",
                      version_text(driver));
  }
  TRY(cuda_result(status, "cudaGetDeviceCount", 0));
  std::vector<CudaDeviceInfo> devices;
  for (int index = 0; index < count; ++index) devices.push_back(TRY(describe(index)));
  return devices;
}

core::Result<void> check_usable(const Device& device) {
  const auto* own = dynamic_cast<const CudaDevice*>(&device);
  return own != nullptr ? own->check_usable() : core::Result<void>{};
}

bool cuda_loads_lazily() {
  constexpr int kLazy = 2;  // CU_MODULE_LAZY_LOADING
  int mode = 0;
  const auto ask = reinterpret_cast<int (*)(int* mode)>(driver_function("cuModuleGetLoadingMode"));
  return ask != nullptr && ask(&mode) == 0 && mode == kLazy;
}

core::Result<std::unique_ptr<Device>> open_cuda_device(CudaOptions options) {
  auto devices = TRY(cuda_devices());
  if (options.device < 0 || static_cast<std::size_t>(options.device) >= devices.size()) {
    return core::fail(core::Errc::not_found,
                      "expected GPU {}, but this process sees {} (numbered from 0); look at "
                      "CUDA_VISIBLE_DEVICES, or start fewer ranks on this machine",
                      options.device, devices.size());
  }
  auto& info = devices[static_cast<std::size_t>(options.device)];
  try {
    auto device = std::make_unique<CudaDevice>(std::move(options), std::move(info));
    TRY(device->open());
    return device;
  } catch (const std::system_error& error) {
    return core::fail(core::Errc::unavailable,
                      "expected a thread that waits for the device's events, but the system has none ({}); "
                      "raise the limit of threads (ulimit -u) or start fewer ranks",
                      error.what());
  }
}

}  // namespace troupe::gpu
