#include "gpu/cuda/status.hpp"

#include <fmt/format.h>

namespace troupe::gpu {

core::Error cuda_error(cudaError_t status, std::string_view call, int device) {
  // A non-sticky error would be found again by the next call that queries the last error.
  (void)cudaGetLastError();
  auto code = core::Errc::internal;
  std::string_view advice =
      "the device is not used any more: end the process, and look at the kernel's log (dmesg, Xid) for a "
      "fault of the hardware";
  if (status == cudaErrorMemoryAllocation) {
    code = core::Errc::out_of_memory;
    advice = "use smaller buffers, fewer ranks per device, or a device with more memory";
  } else if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    code = core::Errc::unavailable;
    advice = "install a driver that is new enough for this build's CUDA runtime, or train on the host device";
  } else if (status == cudaErrorNoKernelImageForDevice) {
    code = core::Errc::unavailable;
    advice = "build for this GPU as well: -DCMAKE_CUDA_ARCHITECTURES takes its compute capability";
  } else if (status == cudaErrorInvalidDevice) {
    code = core::Errc::unavailable;
    advice = "look at CUDA_VISIBLE_DEVICES and at troupe doctor for the devices there are";
  }
  return {code, fmt::format("expected {} on device {} to succeed, but it said {} ({}); {}", call, device,
                            cudaGetErrorName(status), cudaGetErrorString(status), advice)};
}

core::Result<void> cuda_result(cudaError_t status, std::string_view call, int device) {
  if (status == cudaSuccess) return {};
  return tl::unexpected<core::Error>(cuda_error(status, call, device));
}

cudaError_t queried(cudaError_t status) {
  if (status == cudaErrorNotReady) (void)cudaGetLastError();
  return status;
}

CaptureGuard::CaptureGuard() {
  (void)cudaThreadExchangeStreamCaptureMode(&before_);
}

CaptureGuard::~CaptureGuard() {
  (void)cudaThreadExchangeStreamCaptureMode(&before_);
}

void* driver_function(const char* name) {
  void* found = nullptr;
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 12000;
  (void)cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, nullptr);
#else
  (void)cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
  return found;
}

namespace {

/// Whether anything in this process uses the device, which has a context from then on.
bool has_context(int device) {
  using ContextState = int (*)(int device, unsigned* flags, int* active);
  static const auto context_state =
      reinterpret_cast<ContextState>(driver_function("cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int is_active = 0;
  return context_state != nullptr && context_state(device, &flags, &is_active) == 0 && is_active != 0;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) : status_(cudaGetDevice(&before_)) {
  if (status_ == cudaSuccess && before_ != device) {
    status_ = cudaSetDevice(device);
    is_changed_ = status_ == cudaSuccess;
  }
  if (status_ == cudaSuccess) captures_.emplace();
}

DeviceGuard::~DeviceGuard() {
  captures_.reset();
  // Since CUDA 12 this call makes a context where there is none: hundreds of MiB, and a failure where the
  // device admits no other process.
  if (is_changed_ && has_context(before_)) (void)cudaSetDevice(before_);
}

}  // namespace troupe::gpu
