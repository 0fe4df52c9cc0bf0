#include "gpu/order/checked_device.hpp"

#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "gpu/order/access_log.hpp"
#include "gpu/order/clock.hpp"
#include "gpu/order/host_line.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::gpu {
namespace {

constexpr const char* kHost = "the host";

/// What the streams, events and buffers of one device share.
class Book {
 public:
  explicit Book(OrderReport report) : report_(std::move(report)) {}

  void add(ConstBufferView memory) {
    std::lock_guard lock(mutex_);
    log_.add(memory);
  }

  void remove(ConstBufferView memory) {
    auto& host = HostLine::current();
    const auto moment = host.step();
    std::vector<OrderConflict> found;
    {
      std::lock_guard lock(mutex_);
      const AccessLog::Task task{moment, {"Buffer", kHost}};
      log_.remove(memory, task, host.clock(), found);
    }
    tell(found);
  }

  /// A text that lives as long as the book.
  std::string_view keep(std::string text) {
    std::lock_guard lock(mutex_);
    return kept_.emplace_back(std::move(text));
  }

  [[nodiscard]] std::vector<OrderConflict> touch(std::string_view label, std::string_view place,
                                                 const Accesses& accesses, Moment moment,
                                                 const OrderClock& clock) {
    std::vector<OrderConflict> found;
    std::lock_guard lock(mutex_);
    const AccessLog::Task task{moment, {label, place}};
    log_.for_each_joined(accesses.reads, [&](auto range) { log_.read(range, task, clock, found); });
    log_.for_each_joined(accesses.writes, [&](auto range) { log_.write(range, task, clock, found); });
    return found;
  }

  void tell(const std::vector<OrderConflict>& found) {
    for (const auto& conflict : found) {
      const auto& [earlier, later] = std::tie(conflict.earlier, conflict.later);
      {
        std::lock_guard lock(mutex_);
        const Pair pair{earlier.label, earlier.place, later.label, later.place};
        if (!told_.insert(pair).second) continue;
      }
      report_(conflict.sentence());
    }
  }

 private:
  using Pair = std::tuple<std::string, std::string, std::string, std::string>;

  const OrderReport report_;
  std::mutex mutex_;  // guards all below
  AccessLog log_;
  std::deque<std::string> kept_;
  std::set<Pair> told_;
};

class CheckedEvent final : public EventState {
 public:
  explicit CheckedEvent(Event event) : event_(std::move(event)) {}

  bool is_complete() const override { return event_->is_complete(); }
  core::Result<void> wait(std::chrono::nanoseconds deadline) override {
    const auto recorded = clock();
    TRY(event_->wait(deadline));
    HostLine::current().join(recorded);
    return {};
  }

  EventView bare() const { return event_.get(); }
  OrderClock clock() const {
    std::lock_guard lock(mutex_);
    return clock_;
  }
  void join_into(OrderClock& clock) const {
    std::lock_guard lock(mutex_);
    clock.join(clock_);
  }
  void record(const OrderClock& clock) {
    std::lock_guard lock(mutex_);
    clock_ = clock;
  }

 private:
  const Event event_;
  mutable std::mutex mutex_;  // guards clock_
  OrderClock clock_;          ///< of the latest record
};

CheckedEvent& checked(EventView event) {
  auto* own = dynamic_cast<CheckedEvent*>(event);
  CHECK(own != nullptr, "a stream of a checked device takes its events");
  return *own;
}

class CheckedStream final : public StreamQueue, public TaskOrder {
 public:
  CheckedStream(std::shared_ptr<Book> book, Stream stream, LineId line)
      : book_(std::move(book)),
        stream_(std::move(stream)),
        place_(book_->keep(fmt::format("stream {}", stream_->name()))),
        line_(line) {}
  ~CheckedStream() override {
    // Before and after: what its tasks own is freed here.
    HostLine::current().join(clock_);
    stream_.reset();
    HostLine::current().join(callbacks_->clock());
  }

  std::string_view name() const override { return stream_->name(); }
  void enqueue(std::string_view label, TaskCost cost, std::function<void()> body) override {
    pass();
    stream_->enqueue(label, cost, std::move(body));
  }
  void enqueue_async(std::string_view label, std::function<void(Completion)> start) override {
    pass();
    stream_->enqueue_async(label, std::move(start));
  }
  void record(EventView event) override {
    auto& own = checked(event);
    {
      std::lock_guard lock(mutex_);
      advance();
      own.record(clock_);
    }
    stream_->record(own.bare());
  }
  void wait(EventView event) override {
    auto& own = checked(event);
    {
      std::lock_guard lock(mutex_);
      own.join_into(clock_);
      advance();
    }
    stream_->wait(own.bare());
  }
  void notify(std::function<void()> callback) override {
    // Copied by std::function, and shared by the callbacks, which come one after another.
    auto clock = std::make_shared<const OrderClock>(advanced());
    stream_->notify([line = callbacks_, clock = std::move(clock), callback = std::move(callback)]() mutable {
      const HostScope scope(*line, Past{clock});
      callback();
      // What it owns is freed here.
      callback = nullptr;
    });
  }
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override {
    const auto clock = advanced();
    TRY(stream_->synchronize(deadline));
    HostLine::current().join(clock);
    return {};
  }
  DeviceKernels* kernels() override { return stream_->kernels(); }
  bool run_native(std::string_view label, const std::function<int(void* native)>& launch) override {
    pass();
    return stream_->run_native(label, launch);
  }
  TaskOrder* order() override { return this; }
  StreamQueue* bare() override { return stream_->bare(); }

  void task(std::string_view label, const Accesses& accesses) override {
    std::vector<OrderConflict> found;
    {
      std::lock_guard lock(mutex_);
      const auto moment = advance();
      found = book_->touch(label, place_, accesses, moment, clock_);
    }
    book_->tell(found);
  }

 private:
  void pass() {
    std::lock_guard lock(mutex_);
    advance();
  }
  OrderClock advanced() {
    std::lock_guard lock(mutex_);
    advance();
    return clock_;
  }
  /// What is enqueued now comes after all that the caller knows, and after what was enqueued before.
  Moment advance() {
    clock_.join(HostLine::current().clock());
    const Moment moment{line_, clock_.tick_of(line_) + 1};
    clock_.advance(moment);
    return moment;
  }

  const std::shared_ptr<Book> book_;  // shared with all that belongs to the device
  Stream stream_;
  const std::string_view place_;
  const LineId line_;
  std::shared_ptr<HostLine> callbacks_ = std::make_shared<HostLine>();  // shared with pending notifications
  std::mutex mutex_;                                                    // guards clock_
  OrderClock clock_;
};

class CheckedDevice final : public Device, public TaskOrder {
 public:
  CheckedDevice(std::unique_ptr<Device> owned, Device& device, OrderReport report)
      : owned_(std::move(owned)), device_(device), book_(std::make_shared<Book>(std::move(report))) {}
  ~CheckedDevice() override { HostLine::current().forget(lines_); }

  DeviceKind kind() const override { return device_.kind(); }
  bool is_host_memory() const override { return device_.is_host_memory(); }
  std::string description() const override { return device_.description(); }
  core::Result<Buffer> allocate(std::size_t bytes) override { return watch(TRY(device_.allocate(bytes))); }
  core::Result<Buffer> allocate_staging(std::size_t bytes) override {
    return watch(TRY(device_.allocate_staging(bytes)));
  }
  core::Result<Stream> create_stream(StreamOptions options) override {
    auto stream = TRY(device_.create_stream(std::move(options)));
    std::lock_guard lock(mutex_);
    lines_.push_back(next_line());
    return std::make_unique<CheckedStream>(book_, std::move(stream), lines_.back());
  }
  core::Result<Event> create_event() override {
    return std::make_unique<CheckedEvent>(TRY(device_.create_event()));
  }
  DeviceTime now() const override { return device_.now(); }
  DeviceTime run_delay() const override { return device_.run_delay(); }
  void observe(TaskObserver observer) override { device_.observe(std::move(observer)); }
  core::Profiler* profiler() override { return device_.profiler(); }
  TaskOrder* order() override { return this; }

  void task(std::string_view label, const Accesses& accesses) override {
    auto& host = HostLine::current();
    const auto moment = host.step();
    book_->tell(book_->touch(label, kHost, accesses, moment, host.clock()));
  }

 private:
  Buffer watch(Buffer buffer) {
    const auto view = buffer.view();
    if (view.bytes == 0) return buffer;
    book_->add(view);
    // std::function must be copyable, a Buffer is not: the release is its only owner.
    auto held = std::make_shared<Buffer>(std::move(buffer));
    return Buffer(view, [book = book_, held](BufferView released) mutable {
      book->remove(released);
      held.reset();
    });
  }

  const std::unique_ptr<Device> owned_;
  Device& device_;
  const std::shared_ptr<Book> book_;  // shared with streams and buffers
  std::mutex mutex_;                  // guards lines_
  std::vector<LineId> lines_;
};

}  // namespace

std::unique_ptr<Device> check_order(std::unique_ptr<Device> device, OrderReport report) {
  auto& checked = *device;
  return std::make_unique<CheckedDevice>(std::move(device), checked, std::move(report));
}

std::unique_ptr<Device> check_order(Device& device, OrderReport report) {
  return std::make_unique<CheckedDevice>(nullptr, device, std::move(report));
}

}  // namespace troupe::gpu
