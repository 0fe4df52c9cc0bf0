#include "gpu/simulated/simulated_device.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "core/errors.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/simulated/simulated_stream.hpp"

namespace troupe::gpu {

void SimulatedDevice::set_slowdown(double factor) {
  CHECK(factor > 0, "a slowdown factor is positive");
  slowdown_ = factor;
}

std::string SimulatedDevice::description() const {
  return fmt::format("{}, virtual time, {:.3g} GB/s", options_.name, options_.bytes_per_second / 1e9);
}

core::Result<Buffer> SimulatedDevice::allocate(std::size_t bytes) {
  if (bytes > options_.memory_bytes - allocated_bytes_) {
    return core::fail(
        core::Errc::out_of_memory,
        "expected {} bytes on device '{}', but {} of its {} bytes are in use; use smaller buffers or more "
        "ranks",
        bytes, options_.name, allocated_bytes_, options_.memory_bytes);
  }
  Buffer memory = TRY(allocate_host_memory(bytes));
  const BufferView view = memory.view();
  allocated_bytes_ += bytes;
  // std::function must be copyable, a Buffer is not: the release closure is its only owner.
  auto held = std::make_shared<Buffer>(std::move(memory));
  return Buffer(view, [this, held](BufferView released) mutable {
    allocated_bytes_ -= released.bytes;
    held.reset();
  });
}

core::Result<Stream> SimulatedDevice::create_stream(StreamOptions options) {
  return std::make_unique<SimulatedStream>(*this, std::move(options));
}

core::Result<Event> SimulatedDevice::create_event() {
  return std::make_unique<SimulatedEvent>();
}

std::chrono::nanoseconds SimulatedDevice::duration_of(TaskCost cost) const {
  const double nanoseconds = static_cast<double>(options_.task_latency.count()) +
                             static_cast<double>(cost.bytes_touched) / options_.bytes_per_second * 1e9;
  return std::chrono::nanoseconds(static_cast<std::int64_t>(nanoseconds * slowdown_));
}

}  // namespace troupe::gpu
