#include "actors/session/landing.hpp"

#include <new>

#include "gpu/kernels.hpp"

namespace troupe::actors {

core::Result<Landing> Landing::create(gpu::Device& device, std::vector<gpu::BufferView> destinations) {
  Landing landing(device, std::move(destinations));
  if (device.kind() != gpu::DeviceKind::cuda) return landing;
  std::size_t bytes = 0;
  for (const auto view : landing.destinations_) bytes += view.bytes;
  try {
    landing.bounce_.resize(bytes);
  } catch (const std::bad_alloc&) {
    return core::fail(core::Errc::out_of_memory,
                      "a restore needs {} bytes of the host's memory for what goes to the device", bytes);
  }
  return landing;
}

std::vector<std::span<std::byte>> Landing::memory() {
  std::vector<std::span<std::byte>> spans;
  auto* next = bounce_.data();
  for (const auto view : destinations_) {
    spans.emplace_back(bounce_.empty() ? view.data : next, view.bytes);
    if (!bounce_.empty()) next += view.bytes;
  }
  return spans;
}

core::Result<void> Landing::deliver(std::chrono::nanoseconds deadline) {
  if (bounce_.empty()) return {};
  auto stream = TRY(device_->create_stream({"restore", 0}));
  const auto sources = memory();
  for (std::size_t i = 0; i < sources.size(); ++i)
    gpu::copy({sources[i].data(), sources[i].size()}, destinations_[i], stream.get());
  return stream->synchronize(deadline);
}

}  // namespace troupe::actors
