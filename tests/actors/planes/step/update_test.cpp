#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "actors/planes/step/data_plane.hpp"
#include "core/errors.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {
namespace {

/// Another stream, and `between`, called once before its next task is enqueued.
class InterruptedStream final : public gpu::StreamQueue {
 public:
  InterruptedStream(gpu::Stream stream, std::function<void()>& between)
      : stream_(std::move(stream)), between_(between) {}

  std::string_view name() const override { return stream_->name(); }
  void enqueue(std::string_view label, gpu::TaskCost cost, std::function<void()> body) override {
    if (auto call = std::exchange(between_, nullptr)) call();
    stream_->enqueue(label, cost, std::move(body));
  }
  void enqueue_async(std::string_view label, std::function<void(gpu::Completion)> start) override {
    stream_->enqueue_async(label, std::move(start));
  }
  void record(gpu::EventView event) override { stream_->record(event); }
  void wait(gpu::EventView event) override { stream_->wait(event); }
  void notify(std::function<void()> callback) override { stream_->notify(std::move(callback)); }
  core::Result<void> synchronize(std::chrono::nanoseconds deadline) override {
    return stream_->synchronize(deadline);
  }

 private:
  gpu::Stream stream_;
  std::function<void()>& between_;
};

/// A simulated device in whose enqueueing another thread of the rank may come between.
class InterruptedDevice final : public gpu::Device {
 public:
  explicit InterruptedDevice(gpu::Timeline& timeline) : device_(timeline, {}) {}

  std::function<void()> between;

  gpu::DeviceKind kind() const override { return device_.kind(); }
  bool is_host_memory() const override { return device_.is_host_memory(); }
  std::string description() const override { return device_.description(); }
  core::Result<gpu::Buffer> allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  core::Result<gpu::Buffer> allocate_staging(std::size_t bytes) override { return device_.allocate(bytes); }
  core::Result<gpu::Stream> create_stream(gpu::StreamOptions options) override {
    return std::make_unique<InterruptedStream>(TRY(device_.create_stream(std::move(options))), between);
  }
  core::Result<gpu::Event> create_event() override { return device_.create_event(); }
  gpu::DeviceTime now() const override { return device_.now(); }
  void observe(gpu::TaskObserver observer) override { device_.observe(std::move(observer)); }

 private:
  gpu::SimulatedDevice device_;
};

struct Plane {
  explicit Plane(TrainingPlan planned) : plan(std::move(planned)) {
    DataPlane::Options options;
    options.post = [](const messages::Envelope&) {};
    data = DataPlane::create(device, plan, std::move(options)).value();
  }

  gpu::ManualTimeline timeline;
  InterruptedDevice device{timeline};
  TrainingPlan plan;
  std::unique_ptr<DataPlane> data;
};

TrainingPlan two_buckets() {
  core::TrainingOptions options;
  options.strategy = core::Strategy::ddp;
  options.bucket_elements = 1;
  return plan_training({{"a", {1000}}, {"b", {3000}}}, options, {1}).value();
}

TEST(Update, OfTwoBucketsEnqueuedAtOnceCountsOnce) {
  Plane plane(two_buckets());
  plane.device.between = [&] { plane.data->perform(StepShard{{0}, {1}, true, 0.1, 1}); };

  plane.data->perform(StepShard{{0}, {0}, true, 0.1, 1});
  plane.timeline.run_until_idle();

  EXPECT_GT(plane.timeline.now().count(), 0);
  EXPECT_EQ(plane.data->moment().optimizer, plane.timeline.now());
}

// Covers buffer-12, finish-12, unit-20.
TEST(Update, ClearsOnlyReducedSlotsButAllAfterRefusals) {
  core::TrainingOptions options;
  options.lanes = 8;
  Plane plane(plan_training({{"w", {100}}}, options, {1}).value());
  int cleared = 0;
  plane.device.observe([&](const gpu::TaskRecord& task) { cleared += task.label == "zero" ? 1 : 0; });
  const auto lanes = [&] {
    for (int lane = 0; lane < 8; ++lane) {
      auto gradient = plane.data->tensors().gradient({0}, {lane}).as<float>();
      for (float& element : gradient) element += static_cast<float>(1 << lane);
      plane.data->perform(PrepareBucket{{0}, {0}, {lane}, lane == 7});
      plane.timeline.run_until_idle();
    }
  };
  lanes();
  ASSERT_EQ(plane.data->tensors().reduced_gradient({0}).memory.as<float>()[0], 255.0F);
  cleared = 0;

  plane.data->perform(StepShard{{0}, {0}, true, 0, 1});
  plane.timeline.run_until_idle();

  EXPECT_EQ(cleared, 1) << "of four slots, three were cleared when they were merged";
  lanes();
  EXPECT_EQ(plane.data->tensors().reduced_gradient({0}).memory.as<float>()[0], 255.0F)
      << "nothing is left of the first time";
  for (int lane = 0; lane < 8; ++lane) plane.data->tensors().gradient({0}, {lane}).as<float>()[0] += 1;
  cleared = 0;

  plane.data->perform(StepShard{{1}, {0}, false, 0, 1});
  plane.timeline.run_until_idle();

  EXPECT_EQ(cleared, 4) << "gradients may have come again after they were merged";
  lanes();
  EXPECT_EQ(plane.data->tensors().reduced_gradient({0}).memory.as<float>()[0], 255.0F);
}

}  // namespace
}  // namespace troupe::actors
