#include "gpu/collective/nccl/nccl_device.hpp"

#include <fmt/format.h>

namespace troupe::gpu {

/// Lets the watch detect communicators whose abort does not return.
class NcclDevice::Reaper final : public NcclWatched {
 public:
  explicit Reaper(NcclDisposal& disposal) : disposal_(disposal) {}
  bool look() override { return disposal_.look(); }

 private:
  NcclDisposal& disposal_;
};

NcclDevice::NcclDevice(std::shared_ptr<const NcclLibrary> library, Device& device, NcclDevicePort port,
                       NcclOptions options)
    : library_(std::move(library)),
      device_(device),
      port_(std::move(port)),
      options_(std::move(options)),
      memories_(library_, device_, port_),
      disposal_(std::make_unique<NcclDisposal>(library_, port_, options_)),
      reaper_(std::make_shared<Reaper>(*disposal_)),
      watch_(std::make_unique<NcclWatch>(options_.watch_period, port_.make_current)) {
  watch_->add(reaper_);
  if (options_.register_memory && !registers_memory()) {
    warn(fmt::format("{}: no memory is registered: NCCL {} cannot; install 2.19 or newer", port_.name,
                     nccl_version_text(library_->capabilities.version)));
  }
}

NcclDevice::~NcclDevice() {
  watch_.reset();
  disposal_.reset();
}

bool NcclDevice::registers_memory() const {
  return options_.register_memory && library_->capabilities.registers_memory;
}

void NcclDevice::warn(std::string_view line) const {
  if (options_.log) options_.log(line);
}

core::Result<Event> NcclDevice::take_event() {
  {
    std::lock_guard lock(events_mutex_);
    if (!events_.empty()) {
      Event event = std::move(events_.back());
      events_.pop_back();
      return event;
    }
  }
  return device_.create_event();
}

void NcclDevice::return_event(Event event) {
  std::lock_guard lock(events_mutex_);
  events_.push_back(std::move(event));
}

}  // namespace troupe::gpu
