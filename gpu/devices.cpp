#include "gpu/devices.hpp"

#include <limits>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"
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
  if (name == "host") return open_host_device(std::move(on_failure));
  if (const auto index = cuda_index_of(name)) return open_cuda(*index, std::move(on_failure));
  return tl::unexpected(check_device_name(name).error());
}

core::Result<void> settle(Device& device, std::chrono::nanoseconds deadline) {
  if (device.is_host_memory()) return {};
#ifdef TROUPE_HAS_CUDA
  TRY(check_usable(device));
#endif
  const auto stream = TRY(device.create_stream({"between epochs", 0}));
  return stream->synchronize(deadline);
}

core::Result<void> check_device_name(std::string_view name) {
  if (name == "host" || cuda_index_of(name)) return {};
  return core::fail(core::Errc::invalid_argument, "expected host, cuda or cuda:<index>, found {}",
                    core::quoted_excerpt(name));
}

std::optional<int> cuda_index_of(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (name == "cuda") return 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto index =
      core::parse_number<int>(name.substr(kPrefix.size()), {0, std::numeric_limits<int>::max()});
  return index ? std::optional(*index) : std::nullopt;
}

}  // namespace troupe::gpu
