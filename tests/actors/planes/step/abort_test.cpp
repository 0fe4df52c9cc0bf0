#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "actors/planes/step/data_plane.hpp"
#include "core/indices.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/actors/planes/step/groups_of_rank.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::actors {
namespace {

/// Rank 0 of a job of four ranks and two copies of the optimizer; nobody else ever comes to a collective.
class LonelyRank {
 public:
  explicit LonelyRank(const std::optional<messages::Failure>& aborted_first = {}) {
    DataPlane::Options options;
    options.post = [this](const messages::Envelope& envelope) {
      if (const auto* done = std::get_if<messages::CollectiveDone>(&envelope.body)) ended.push_back(*done);
    };
    plane_ = DataPlane::create(device_, plan, std::move(options)).value();
    if (aborted_first) plane_->abort(messages::error_of(*aborted_first));
    EXPECT_TRUE(plane_->set_groups(groups_of_rank(*backend_, plan, *plane_)));
  }

  void launch(core::PlanEntryIndex entry) {
    plane_->perform(LaunchCollective{{0}, entry, core::place_of(entry)});
    timeline_.run_until(timeline_.now() + std::chrono::milliseconds(1));
  }
  void abort(const messages::Failure& why) {
    plane_->abort(messages::error_of(why));
    timeline_.run_until(timeline_.now() + std::chrono::milliseconds(1));
  }

  const auto& launches() const { return plane_->program().launches(); }

  TrainingPlan plan = planned();
  std::vector<messages::CollectiveDone> ended;

 private:
  static TrainingPlan planned() {
    core::TrainingOptions options;
    options.numerics = core::Numerics::fast;
    options.optimizer_instances = 2;
    return plan_training({{"w", {512}}}, options, {4}).value();
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

TEST(AbortCollectives, EndsWhatRunsInEveryGroupOfTheRank) {
  const auto entries = LonelyRank().launches().size();
  ASSERT_EQ(entries, 4u) << "a sum in the inner group, one in the outer, the verdict, a gather";
  for (const auto entry : core::indices<core::PlanEntryIndex>(entries)) {
    LonelyRank rank;
    rank.launch(entry);
    ASSERT_TRUE(rank.ended.empty());

    rank.abort(reason());

    const auto what = describe(rank.launches()[entry]);
    ASSERT_EQ(rank.ended.size(), 1u) << what;
    EXPECT_EQ(rank.ended[0].entry, entry);
    EXPECT_EQ(rank.ended[0].failure, reason()) << what;
  }
}

TEST(AbortCollectives, EndsWhatIsLaunchedLaterInAnyGroup) {
  LonelyRank rank;
  rank.abort(reason());

  for (const auto entry : rank.launches().indices()) rank.launch(entry);

  ASSERT_EQ(rank.ended.size(), rank.launches().size());
  for (const auto& done : rank.ended) EXPECT_EQ(done.failure, reason());
}

TEST(AbortCollectives, EndsWhatIsLaunchedInGroupsThatCameLater) {
  LonelyRank rank(reason());

  for (const auto entry : rank.launches().indices()) rank.launch(entry);

  ASSERT_EQ(rank.ended.size(), rank.launches().size());
  for (const auto& done : rank.ended) EXPECT_EQ(done.failure, reason());
}

}  // namespace
}  // namespace troupe::actors
