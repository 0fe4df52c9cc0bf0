#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "actors/planes/step/data_plane.hpp"
#include "core/indices.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/actors/planes/step/groups_of_rank.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {

/// The data planes of all ranks of a job, in virtual time and without any role. `use` may put another
/// back-end before the one that moves bytes.
class Planes {
 public:
  explicit Planes(TrainingPlan planned, gpu::CollectiveBackend& (*use)(gpu::CollectiveBackend&) = nullptr,
                  const gpu::SimulatedDeviceOptions& device = {})
      : plan(std::move(planned)) {
    auto& backend = use == nullptr ? *backend_ : use(*backend_);
    for (int rank = 0; rank < plan.world.value; ++rank) {
      devices_.push_back(std::make_unique<gpu::SimulatedDevice>(timeline_, device));
      DataPlane::Options options;
      options.rank = {rank};
      options.post = [this](messages::Envelope envelope) { said.push_back(std::move(envelope)); };
      planes_.push_back(DataPlane::create(*devices_.back(), plan, std::move(options)).value());
      EXPECT_TRUE(planes_.back()->set_groups(groups_of_rank(backend, plan, *planes_.back())));
    }
  }

  DataPlane& operator[](int rank) { return *planes_[static_cast<std::size_t>(rank)]; }

  /// The reduction of all buckets, each rank playing the lane of its number.
  void reduce() {
    for (int rank = 0; rank < plan.world.value; ++rank) {
      for (const auto bucket : plan.buckets.indices())
        (*this)[rank].perform(PrepareBucket{{0}, bucket, {rank}, true});
      const auto& launches = (*this)[rank].program().launches();
      for (const auto entry : launches.indices()) {
        if (!launches[entry].moves_gradients()) continue;
        (*this)[rank].perform(LaunchCollective{{0}, entry, core::place_of(entry)});
      }
    }
    timeline_.run_until_idle();
  }

  /// Brings what the optimizers stepped to all ranks, bucket by bucket.
  void publish() {
    for (int rank = 0; rank < plan.world.value; ++rank) {
      const auto& launches = (*this)[rank].program().launches();
      for (const auto entry : launches.indices()) {
        if (launches[entry].is_verdict() || !launches[entry].publishes()) continue;
        (*this)[rank].perform(LaunchCollective{{0}, entry, core::place_of(entry)});
      }
    }
    timeline_.run_until_idle();
  }

  TrainingPlan plan;
  std::vector<messages::Envelope> said;

 private:
  gpu::ManualTimeline timeline_;
  gpu::SimulatedFabric fabric_{timeline_};
  std::unique_ptr<gpu::CollectiveBackend> backend_ = fabric_.backend();
  std::vector<std::unique_ptr<gpu::SimulatedDevice>> devices_;
  std::vector<std::unique_ptr<DataPlane>> planes_;
};

}  // namespace troupe::actors
