#include "gpu/devices.hpp"

#include <charconv>
#include <utility>

#include "core/errors.hpp"
#include "gpu/host/host_device.hpp"

#ifdef TROUPE_HAS_CUDA
#include "gpu/cuda/cuda_device.hpp"
#endif

namespace troupe::gpu {
namespace {

#ifdef TROUPE_HAS_CUDA
core::Result<std::unique_ptr<Device>> open_cuda(int index, DeviceFailed on_failure) {
  return open_cuda_device({.device = index, .on_failure = std::move(on_failure)});
}
#else
constexpr const char* kWithoutCuda =
    "expected a build with the CUDA data plane, but this one has none; build with -DTROUPE_CUDA=ON, or train "
    "on the host device";

core::Result<std::unique_ptr<Device>> open_cuda(int /*index*/, DeviceFailed /*on_failure*/) {
  return core::fail(core::Errc::unavailable, kWithoutCuda);
}
#endif

}  // namespace

bool is_built_with_cuda() noexcept {
#ifdef TROUPE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

core::Result<std::vector<CudaDeviceInfo>> list_cuda_devices() {
#ifdef TROUPE_HAS_CUDA
  return cuda_devices();
#else
  return core::fail(core::Errc::unavailable, kWithoutCuda);
#endif
}

core::Result<std::unique_ptr<Device>> open_device(std::string_view name, DeviceFailed on_failure) {
  if (name == "host") return open_host_device();
  if (name == "cuda") return open_cuda(0, std::move(on_failure));
  constexpr std::string_view kPrefix = "cuda:";
  if (name.substr(0, kPrefix.size()) == kPrefix) {
    int index = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, index);
    if (parsed.ec == std::errc{} && parsed.ptr == end && index >= 0)
      return open_cuda(index, std::move(on_failure));
  }
  return core::fail(core::Errc::invalid_argument,
                    "expected a device named host, cuda or cuda:<index>, but found '{}'", name);
}

}  // namespace troupe::gpu
