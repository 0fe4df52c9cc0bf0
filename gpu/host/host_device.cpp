#include "gpu/host/host_device.hpp"

#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.hpp"
#include "gpu/host/host_event.hpp"
#include "gpu/host/host_stream.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/host/observer_slot.hpp"
#include "posix/run_delay.hpp"

namespace troupe::gpu {
namespace {

class HostDevice final : public Device {
 public:
  explicit HostDevice(DeviceFailed on_failure) : failure_(std::move(on_failure)) {}

  DeviceKind kind() const override { return DeviceKind::host; }
  bool is_host_memory() const override { return true; }

  std::string description() const override {
    return fmt::format("host, {} cores, {}", std::thread::hardware_concurrency(),
                       __builtin_cpu_supports("avx2") ? "AVX2" : "no AVX2");
  }

  core::Result<Buffer> allocate(std::size_t bytes) override { return allocate_host_memory(bytes); }

  core::Result<Buffer> allocate_staging(std::size_t bytes) override { return allocate_host_memory(bytes); }

  core::Result<Stream> create_stream(StreamOptions options) override {
    const std::string name = options.name;
    try {
      return std::make_unique<HostStream>(std::move(options), observer_, failure_);
    } catch (const std::system_error& error) {
      return core::fail(
          core::Errc::unavailable,
          "expected a thread for stream '{}', but the system has none ({}); raise the limit of threads "
          "(ulimit -u) or start fewer ranks",
          name, error.what());
    }
  }

  core::Result<Event> create_event() override { return std::make_unique<HostEvent>(); }

  DeviceTime now() const override { return host_now(); }
  DeviceTime run_delay() const override { return posix::run_delay(); }

  void observe(TaskObserver observer) override { observer_.set(std::move(observer)); }

 private:
  ObserverSlot observer_;
  FailureSlot failure_;
};

}  // namespace

core::Result<std::unique_ptr<Device>> open_host_device(DeviceFailed on_failure) {
  return std::make_unique<HostDevice>(std::move(on_failure));
}

}  // namespace troupe::gpu
