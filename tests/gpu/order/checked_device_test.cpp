#include "gpu/order/checked_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gpu/host/host_device.hpp"
#include "gpu/kernels.hpp"
#include "gpu/order/host_line.hpp"
#include "gpu/order/task_order.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "tests/gpu/manual_timeline.hpp"

namespace troupe::gpu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::chrono::seconds kPatience{60};

/// A simulated device whose order is checked: tasks that are enqueued one after another also run so, as long
/// as the test lets them, so that nothing but the check notices what is missing.
class CheckedDeviceTest : public testing::Test {
 protected:
  void run() { timeline_.run_until_idle(); }

  ManualTimeline timeline_;
  std::vector<std::string> found_;
  std::unique_ptr<Device> device_ =
      check_order(std::make_unique<SimulatedDevice>(timeline_, SimulatedDeviceOptions{}),
                  [this](std::string sentence) { found_.push_back(std::move(sentence)); });
  HostLine trainer_;
  HostScope scope_{trainer_, {}};
  Buffer a_ = device_->allocate(256).value();
  Buffer b_ = device_->allocate(256).value();
  Event event_ = device_->create_event().value();
  Stream update_ = device_->create_stream({"update"}).value();
  Stream communication_ = device_->create_stream({"communication"}).value();
};

TEST_F(CheckedDeviceTest, NamesBothTasksTheirStreamsAndTheMissingEdge) {
  zero(a_.view(), update_.get());
  run();  // It had ended long before, in this run.
  copy(a_.view(), b_.view(), communication_.get());

  EXPECT_THAT(found_, ElementsAre(HasSubstr("'copy' on stream communication reads bytes 0 to 256 of 256 that "
                                            "'zero' on stream update may not have written yet")));
}

TEST_F(CheckedDeviceTest, KnowsTheEdgesOfEvents) {
  zero(a_.view(), update_.get());
  update_->record(event_.get());
  communication_->wait(event_.get());
  copy(a_.view(), b_.view(), communication_.get());

  EXPECT_THAT(found_, IsEmpty());
}

TEST_F(CheckedDeviceTest, TakesTheRecordBeforeTheWait) {
  update_->record(event_.get());
  communication_->wait(event_.get());
  zero(a_.view(), update_.get());
  update_->record(event_.get());
  copy(a_.view(), b_.view(), communication_.get());

  EXPECT_EQ(found_.size(), 1u);
}

TEST_F(CheckedDeviceTest, KnowsWhatTheHostHasWaitedFor) {
  zero(a_.view(), update_.get());
  update_->record(event_.get());
  run();
  ASSERT_TRUE(event_->wait(kPatience));
  copy(a_.view(), b_.view(), communication_.get());
  run();
  ASSERT_TRUE(communication_->synchronize(kPatience));
  declare(*device_, "reading", {b_.view()}, {});

  EXPECT_THAT(found_, IsEmpty());
}

TEST_F(CheckedDeviceTest, TakesNoEdgeFromAskingWhetherSomethingHasEnded) {
  zero(a_.view(), update_.get());
  update_->record(event_.get());
  run();
  ASSERT_TRUE(event_->is_complete());
  declare(*device_, "reading", {a_.view()}, {});

  EXPECT_THAT(found_,
              ElementsAre(HasSubstr("'reading' on the host reads bytes 0 to 256 of 256 that 'zero' on "
                                    "stream update may not have written yet")));
}

TEST_F(CheckedDeviceTest, KnowsWhatAMessageBringsFromANotification) {
  zero(a_.view(), update_.get());
  Past message;
  update_->notify([&] { message = HostLine::current().past(); });
  run();
  HostLine role;
  {
    const HostScope scope(role, message);
    copy(a_.view(), b_.view(), communication_.get());
  }
  EXPECT_THAT(found_, IsEmpty());

  // The trainer has heard nothing of it.
  declare(*device_, "reading", {a_.view()}, {});
  EXPECT_EQ(found_.size(), 1u);
}

TEST_F(CheckedDeviceTest, FindsAHostThatWritesUnreadMemory) {
  copy(a_.view(), b_.view(), communication_.get());
  declare(*device_, "filling", {}, {a_.view()});

  EXPECT_THAT(found_,
              ElementsAre(HasSubstr("'filling' on the host writes bytes 0 to 256 of 256 that 'copy' on "
                                    "stream communication may still read")));
}

TEST_F(CheckedDeviceTest, FindsMemoryFreedWhileATaskMayTouchIt) {
  zero(a_.view(), update_.get());
  run();
  a_ = {};

  EXPECT_THAT(found_, ElementsAre(HasSubstr("frees bytes 0 to 256 of 256 that 'zero' on stream update")));
}

TEST_F(CheckedDeviceTest, LetsMemoryBeFreedAfterItsStreams) {
  zero(a_.view(), update_.get());
  run();
  update_.reset();
  a_ = {};

  EXPECT_THAT(found_, IsEmpty());
}

TEST_F(CheckedDeviceTest, ReportsAPairOnce) {
  zero(a_.view(), update_.get());
  for (int i = 0; i < 3; ++i) copy(a_.view(), b_.view(), communication_.get());
  EXPECT_EQ(found_.size(), 1u);
}

TEST(CheckedHostDevice, IsTheHostsOtherwise) {
  std::vector<std::string> found;
  const auto device = check_order(open_host_device().value(),
                                  [&](std::string sentence) { found.push_back(std::move(sentence)); });
  const Buffer memory = device->allocate(64).value();
  const Stream first = device->create_stream({"first"}).value();
  const Stream second = device->create_stream({"second"}).value();

  fill({memory.view(), core::DType::f32}, 2, first.get());
  ASSERT_TRUE(first->synchronize(kPatience));
  scale({memory.view(), core::DType::f32}, 2, second.get());
  ASSERT_TRUE(second->synchronize(kPatience));

  EXPECT_EQ(memory.view().as<float>()[15], 4);
  EXPECT_THAT(found, IsEmpty());
}

}  // namespace
}  // namespace troupe::gpu
