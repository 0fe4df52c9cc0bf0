#include "actors/planes/replica/plane.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/world/simulation/storage.hpp"
#include "core/errors.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::actors {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Notes the reasons for which it was aborted.
class NotingGroup final : public gpu::Group {
 public:
  explicit NotingGroup(std::vector<std::string>& reasons) : reasons_(reasons) {}

  int index() const override { return 0; }
  int size() const override { return 2; }
  const std::string& name() const override { return name_; }
  core::Result<std::shared_ptr<gpu::OperationStatus>> post(gpu::Operation, gpu::StreamView) override {
    return core::fail(core::Errc::aborted, "nobody is there");
  }
  void abort(core::Error reason) override { reasons_.push_back(reason.message); }

 private:
  std::vector<std::string>& reasons_;
  std::string name_ = "noting";
};

class ReplicaPlaneOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    ReplicaPlane::Options options;
    options.rank = {0};
    options.world = {2};
    options.clique = {{0}, {1}};
    options.chunk_bytes = 64;
    options.credits = 1;
    auto plane = ReplicaPlane::create(*device_, structure_, storage_, options);
    ASSERT_TRUE(plane) << plane.error().message;
    plane_ = std::move(*plane);
  }

  std::vector<std::string> reasons_;
  std::unique_ptr<gpu::Device> device_ = gpu::open_host_device().value();
  core::SaveStructure structure_;
  SimulatedStorage storage_{{}};
  std::unique_ptr<ReplicaPlane> plane_;
};

// Covers local-12.
TEST_F(ReplicaPlaneOfTwo, AnAbortEndsWhatTheGroupDoes) {
  plane_->set_group(std::make_unique<NotingGroup>(reasons_));
  ASSERT_THAT(reasons_, IsEmpty());

  plane_->abort({core::Errc::peer_lost, "rank 1 is gone"});

  EXPECT_THAT(reasons_, ElementsAre("rank 1 is gone"));
}

// Covers local-12.
TEST_F(ReplicaPlaneOfTwo, AbortReachesAGroupMadeAfterIt) {
  plane_->abort({core::Errc::peer_lost, "rank 1 is gone"});
  plane_->abort({core::Errc::aborted, "the session ended"});

  plane_->set_group(std::make_unique<NotingGroup>(reasons_));

  EXPECT_THAT(reasons_, ElementsAre("rank 1 is gone"));
}

}  // namespace
}  // namespace troupe::actors
