#include <gtest/gtest.h>

#include <memory>

#include "actors/planes/step/data_plane.hpp"
#include "core/indices.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {
namespace {

/// Rank 0 of a job of four ranks and two copies of the optimizer; nobody else ever comes to a collective.
class LonelyRank {
 public:
  LonelyRank() {
    DataPlane::Options options;
    options.post = [this](const messages::Envelope& envelope) {
      if (const auto* done = std::get_if<messages::CollectiveDone>(&envelope.body)) ended.push_back(*done);
    };
    plane_ = DataPlane::create(device_, plan, std::move(options)).value();
    DataPlaneGroups groups;
    groups.all = group("all", core::GroupKind::dp_cp);
    groups.inner = group("inner", core::GroupKind::intra_dp_cp);
    groups.outer = group("outer", core::GroupKind::inter_instance);
    EXPECT_TRUE(plane_->set_groups(std::move(groups)));
  }

  void launch(core::PlanEntryIndex entry) {
    plane_->perform(LaunchCollective{{0}, entry, core::place_of(entry)});
    timeline_.run_until(timeline_.now() + std::chrono::milliseconds(1));
  }
  void abort(const messages::Failure& why) {
    plane_->abort(messages::error_of(why));
    timeline_.run_until(timeline_.now() + std::chrono::milliseconds(1));
  }

  TrainingPlan plan = planned();
  std::vector<messages::CollectiveDone> ended;

 private:
  static TrainingPlan planned() {
    core::TrainingOptions options;
    options.numerics = core::Numerics::fast;
    options.optimizer_instances = 2;
    return plan_training({{"w", {512}}}, options, {4}).value();
  }
  std::unique_ptr<gpu::Group> group(const char* name, core::GroupKind kind) {
    gpu::GroupOptions options{.job = "job", .epoch = {1}, .name = name, .self = {0}};
    options.members = plan.mesh.group(kind, {0});
    return backend_->create_group(std::move(options)).value();
  }

  gpu::ManualTimeline timeline_;
  gpu::SimulatedFabric fabric_{timeline_};
  std::unique_ptr<gpu::CollectiveBackend> backend_ = fabric_.backend();
  gpu::SimulatedDevice device_{timeline_, gpu::SimulatedDeviceOptions{}};
  std::unique_ptr<DataPlane> plane_;
};

messages::Failure reason() {
  return {true, core::Errc::peer_lost, "rank 3 is gone"};
}

TEST(AbortCollectives, EndsWhatRunsInEveryGroupOfTheRankAtOnce) {
  const auto entries = LonelyRank().plan.step.entries.size();
  ASSERT_EQ(entries, 4u) << "a sum in the inner group, one in the outer, the verdict, a gather";
  for (const auto entry : core::indices<core::PlanEntryIndex>(entries)) {
    LonelyRank rank;
    rank.launch(entry);
    ASSERT_TRUE(rank.ended.empty());

    rank.abort(reason());

    const auto what = core::describe(rank.plan.step.entries[core::place_of(entry)]);
    ASSERT_EQ(rank.ended.size(), 1u) << what;
    EXPECT_EQ(rank.ended[0].entry, entry);
    EXPECT_EQ(rank.ended[0].failure, reason()) << what;
  }
}

TEST(AbortCollectives, EndsWhatIsLaunchedLaterInAnyGroup) {
  LonelyRank rank;
  rank.abort(reason());

  for (const auto& entry : rank.plan.step.entries) rank.launch(entry.index);

  ASSERT_EQ(rank.ended.size(), rank.plan.step.entries.size());
  for (const auto& done : rank.ended) EXPECT_EQ(done.failure, reason());
}

}  // namespace
}  // namespace troupe::actors
