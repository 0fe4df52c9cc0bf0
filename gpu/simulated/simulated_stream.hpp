#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/stream.hpp"

namespace troupe::gpu {

class SimulatedDevice;

/// One point in a simulated stream's queue, reached once.
struct SimulatedMarker {
  bool is_reached = false;
  std::vector<std::function<void()>> waiting;  ///< resumes each stream that waits at this marker
};

/// An event in virtual time: the marker of its latest record, if any. Markers are shared by the event and by
/// the queued tasks that reach them or wait for them.
class SimulatedEvent final : public EventState {
 public:
  bool is_complete() const override { return latest == nullptr || latest->is_reached; }
  core::Result<void> wait(std::chrono::nanoseconds deadline) override;

  std::shared_ptr<SimulatedMarker> latest;
};

/// A stream in virtual time: a queue whose tasks are actions on the device's timeline.
class SimulatedStream final : public StreamQueue {
 public:
  /// `device` must outlive the stream.
  SimulatedStream(SimulatedDevice& device, StreamOptions options);
  ~SimulatedStream() override;

  std::string_view name() const override;
  void enqueue(std::string_view label, TaskCost cost, std::function<void()> body) override;
  void enqueue_async(std::string_view label, std::function<void(Completion)> start) override;
  void record(EventView event) override;
  void wait(EventView event) override;
  void notify(std::function<void()> callback) override;
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override;

 private:
  class Queue;
  // Owned only by the stream: the timeline's pending actions hold weak references.
  std::shared_ptr<Queue> queue_;
};

}  // namespace troupe::gpu
