#include "gpu/simulated/simulated_stream.hpp"

#include <cstdint>
#include <deque>
#include <utility>

#include "core/errors.hpp"
#include "gpu/simulated/simulated_device.hpp"

namespace troupe::gpu {
namespace {

core::Result<void> refuse_to_block(std::string_view what) {
  return core::fail(core::Errc::unavailable,
                    "expected {}, but in simulation nobody may block; use StreamQueue::notify() instead",
                    what);
}

SimulatedEvent& simulated_event(EventView event) {
  auto* own = dynamic_cast<SimulatedEvent*>(event);
  CHECK(own != nullptr, "a simulated stream takes events of a simulated device");
  return *own;
}

}  // namespace

core::Result<void> SimulatedEvent::wait(std::chrono::nanoseconds /*deadline*/) {
  if (is_complete()) return {};
  return refuse_to_block("a complete event");
}

/// The tasks of one stream. Its pending actions on the timeline hold weak references.
class SimulatedStream::Queue : public std::enable_shared_from_this<Queue> {
 public:
  /// Begins a task. True if the task is complete immediately; otherwise it calls finish() later.
  using Task = std::function<bool(Queue&)>;

  Queue(SimulatedDevice& owner, std::string stream_name) : device(owner), name(std::move(stream_name)) {}

  bool is_empty() const { return tasks_.empty() && !is_busy_; }

  void push(Task task) {
    tasks_.push_back(std::move(task));
    if (is_busy_) return;
    is_busy_ = true;
    // Never inside the caller: the stream's actions come after the user's current ones.
    device.timeline().after({}, guarded([](Queue& queue) { queue.run_tasks(); }));
  }

  /// The number of the running task, for finish().
  std::uint64_t running() const { return running_; }

  /// Ends the running task; the next one starts after the caller returns.
  void finish(std::uint64_t task) {
    CHECK(task == running_, "a task completes once");
    ++running_;
    device.timeline().after({}, guarded([](Queue& queue) { queue.run_tasks(); }));
  }

  /// Wraps an action so that it does nothing once the stream is destroyed.
  template <class Action>
  std::function<void()> guarded(Action action) {
    return [weak = weak_from_this(), action = std::move(action)] {
      if (auto queue = weak.lock()) action(*queue);
    };
  }

  void report(std::string_view label, DeviceTime begin) const {
    if (device.observer()) device.observer()({name, label, begin, device.now()});
  }

  SimulatedDevice& device;
  const std::string name;

 private:
  void run_tasks() {
    while (!tasks_.empty()) {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      if (!task(*this)) return;
    }
    is_busy_ = false;
  }

  std::deque<Task> tasks_;
  bool is_busy_ = false;  // a task is running, or run_tasks() is scheduled
  std::uint64_t running_ = 0;
};

SimulatedStream::SimulatedStream(SimulatedDevice& device, StreamOptions options)
    : queue_(std::make_shared<Queue>(device, std::move(options.name))) {}

SimulatedStream::~SimulatedStream() = default;

std::string_view SimulatedStream::name() const {
  return queue_->name;
}

void SimulatedStream::enqueue(std::string_view label, TaskCost cost, std::function<void()> body) {
  queue_->push([label, cost, body = std::move(body)](Queue& queue) mutable {
    auto at_end = [label, body = std::move(body), begin = queue.device.now(),
                   task = queue.running()](Queue& self) {
      body();
      self.report(label, begin);
      self.finish(task);
    };
    queue.device.timeline().after(queue.device.duration_of(cost), queue.guarded(std::move(at_end)));
    return false;
  });
}

void SimulatedStream::enqueue_async(std::string_view label, std::function<void(Completion)> start) {
  queue_->push([label, start = std::move(start)](Queue& queue) {
    auto at_end = [label, begin = queue.device.now(), task = queue.running()](Queue& self) {
      self.report(label, begin);
      self.finish(task);
    };
    start(queue.guarded(std::move(at_end)));
    return false;
  });
}

void SimulatedStream::record(EventView event) {
  auto marker = std::make_shared<SimulatedMarker>();
  simulated_event(event).latest = marker;
  queue_->push([marker = std::move(marker)](Queue&) {
    marker->is_reached = true;
    for (const auto& resume : marker->waiting) resume();
    marker->waiting.clear();
    return true;
  });
}

void SimulatedStream::wait(EventView event) {
  auto marker = simulated_event(event).latest;
  if (marker == nullptr || marker->is_reached) return;
  queue_->push([marker = std::move(marker)](Queue& queue) {
    if (marker->is_reached) return true;
    marker->waiting.push_back(queue.guarded([task = queue.running()](Queue& self) { self.finish(task); }));
    return false;
  });
}

void SimulatedStream::notify(std::function<void()> callback) {
  queue_->push([callback = std::move(callback)](Queue&) {
    callback();
    return true;
  });
}

core::Result<void> SimulatedStream::synchronize(std::chrono::nanoseconds deadline) {
  if (queue_->is_empty()) return {};
  const auto& wait = queue_->device.waits();
  if (wait && wait([queue = queue_.get()] { return queue->is_empty(); }, deadline)) return {};
  return refuse_to_block(fmt::format("stream '{}' to be empty", queue_->name));
}

}  // namespace troupe::gpu
