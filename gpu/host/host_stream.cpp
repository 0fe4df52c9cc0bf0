#include "gpu/host/host_stream.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "gpu/host/host_event.hpp"

namespace troupe::gpu {
namespace {

HostEvent& host_event(EventView event) {
  auto* own = dynamic_cast<HostEvent*>(event);
  CHECK(own != nullptr, "a host stream takes events of the host device");
  return *own;
}

void dress_thread(const std::string& name, int priority) {
  // Linux keeps 15 characters of a thread's name.
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  // Only lowering the priority needs no privilege; on refusal the usual priority stays.
  if (priority < 0) (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

}  // namespace

HostStream::HostStream(StreamOptions options, const ObserverSlot& observer, FailureSlot& failure)
    : name_(std::move(options.name)),
      observer_(observer),
      failure_(failure),
      worker_([this, priority = options.priority] { work(priority); }) {}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  worker_.join();
}

void HostStream::enqueue(std::string_view label, TaskCost /*cost*/, std::function<void()> body) {
  push({label, std::move(body)});
}

void HostStream::enqueue_async(std::string_view label, std::function<void(Completion)> start) {
  push({label, [start = std::move(start)] {
          // Shared by this task and the Completion, and freed with the last of them.
          auto over = std::make_shared<Marker>();
          start([over] { over->reach(); });
          over->wait();
        }});
}

void HostStream::record(EventView event) {
  auto marker = std::make_shared<Marker>();
  // Moved first: anything that sees the task run also sees the event recorded.
  host_event(event).move_to(marker);
  // On an idle stream there is no reason to wake the thread, which costs tens of microseconds on a sleeping
  // machine.
  if (is_idle()) return marker->reach();
  push({{}, [marker = std::move(marker)] { marker->reach(); }});
}

void HostStream::wait(EventView event) {
  auto marker = host_event(event).latest();
  if (marker == nullptr || marker->is_reached()) return;
  push({{}, [marker = std::move(marker)] { marker->wait(); }});
}

void HostStream::notify(std::function<void()> callback) {
  push({{}, std::move(callback)});
}

core::Result<void> HostStream::synchronize(std::chrono::nanoseconds deadline) {
  CHECK(std::this_thread::get_id() != worker_.get_id(), "a stream's own task does not synchronize it");
  auto marker = std::make_shared<Marker>();
  push({{}, [marker] { marker->reach(); }});
  if (marker->wait_for(deadline)) return {};
  return core::fail(
      core::Errc::timeout,
      "expected stream '{}' to be empty within {} ms, but its tasks still run; look at the stream's "
      "trace for the task that does not end",
      name_, std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
}

void HostStream::push(Task task) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    queue_.push_back(std::move(task));
  }
  if (was_empty) changed_.notify_one();
}

bool HostStream::is_idle() {
  std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void HostStream::work(int priority) {
  dress_thread(name_, priority);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    run(task);
    // What the task captured is destroyed before the next one starts, and outside of the lock.
    task = {};
    lock.lock();
    running_ = false;
  }
}

void HostStream::run(const Task& task) const {
  const auto failed = [&](std::string_view what) {
    failure_.set({core::Errc::internal, fmt::format("a task{}{} of the host's stream '{}' threw: {}",
                                                    task.label.empty() ? "" : " ", task.label, name_, what)});
  };
  try {
    run_observed(task);
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("something that is not a std::exception");
  }
}

void HostStream::run_observed(const Task& task) const {
  if (task.label.empty() || !observer_.is_occupied()) return task.run();
  const DeviceTime begin = host_now();
  task.run();
  observer_.report({name_, task.label, begin, host_now()});
}

DeviceTime host_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace troupe::gpu
