#include <gtest/gtest.h>

#include <algorithm>

#include "actors/planes/step/data_plane.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/actors/planes/step/groups_of_rank.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {
namespace {

TrainingPlan job_of_two_ranks() {
  core::TrainingOptions options;
  options.strategy = core::Strategy::ddp;
  options.numerics = core::Numerics::fast;
  options.average = false;
  return plan_training({{"w", {64}}}, options, {2}).value();
}

// Backward is only enqueued when its gradients are said to be ready; in virtual time it takes far longer than
// what follows it.
TEST(ComputeStream, IsAwaitedByTheReductionOfItsWork) {
  const TrainingPlan plan = job_of_two_ranks();
  gpu::ManualTimeline timeline;
  gpu::SimulatedFabric fabric(timeline);
  const auto backend = fabric.backend();
  std::vector<std::unique_ptr<gpu::SimulatedDevice>> devices;
  std::vector<std::unique_ptr<DataPlane>> planes;
  for (int rank = 0; rank < 2; ++rank) {
    devices.push_back(std::make_unique<gpu::SimulatedDevice>(timeline, gpu::SimulatedDeviceOptions{}));
    DataPlane::Options options;
    options.rank = {rank};
    options.post = [](const messages::Envelope&) {};
    planes.push_back(DataPlane::create(*devices.back(), plan, std::move(options)).value());
    EXPECT_TRUE(planes.back()->set_groups(groups_of_rank(*backend, plan, *planes.back())));
  }

  for (int rank = 0; rank < 2; ++rank) {
    auto& plane = *planes[static_cast<std::size_t>(rank)];
    const gpu::StreamView compute = plane.marks().compute_stream().value();
    const auto gradient = plane.tensors().gradient({0}, {rank}).as<float>();
    compute->enqueue("backward", {std::uint64_t{1} << 40}, [gradient, rank] {
      for (float& element : gradient) element += static_cast<float>(rank + 1);
    });
    plane.marks().computed({0}, {rank});
    plane.perform(PrepareBucket{{0}, {0}, {rank}, true});
    plane.perform(LaunchCollective{{0}, {0}, 0});
    EXPECT_EQ(plane.marks().compute_stream().value(), compute);
  }
  timeline.run_until_idle();

  for (const auto& plane : planes) {
    const auto reduced = plane->tensors().reduced_gradient({0}).memory.as<float>();
    EXPECT_TRUE(std::all_of(reduced.begin(), reduced.end(), [](float element) { return element == 3.0F; }));
  }
}

}  // namespace
}  // namespace troupe::actors
