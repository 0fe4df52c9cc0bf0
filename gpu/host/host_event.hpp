#pragma once

#include <memory>
#include <mutex>

#include "gpu/host/marker.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// An event of the host device: the marker of its latest record, if any. Markers are shared by the event and
/// by the queued tasks of the streams that reach them or wait for them, so recording again does not affect
/// waits for an older record.
class HostEvent final : public EventState {
 public:
  bool is_complete() const override;
  core::Result<void> wait(std::chrono::nanoseconds deadline) override;

  std::shared_ptr<Marker> latest() const;
  void move_to(std::shared_ptr<Marker> marker);

 private:
  mutable std::mutex mutex_;  // guards latest_
  std::shared_ptr<Marker> latest_;
};

}  // namespace troupe::gpu
