// What ends without being told to, and a stage that ends whatever actors of the trainer do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "actors/shell/caf_seam.hpp"
#include "actors/shell/caf_stage.hpp"
#include "actors/shell/subscribers.hpp"
#include "tests/actors/shell/script_machine.hpp"
#include "tests/actors/world/heard_log.hpp"
#include "tests/support/throwing.hpp"

namespace troupe::actors {
namespace {

using messages::Address;
using messages::Role;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Address kWatcher{{3}, Role::rank_supervisor, 0};
constexpr Address kWatched{{3}, Role::conductor, 0};

/// A stage with a supervisor that waits to hear that its rank has failed, and a role that throws when it is
/// told to.
class CafSupervision : public testing::Test {
 protected:
  CafSupervision() {
    supervisor_.on_message = [this](const messages::Envelope& envelope, Outbox&) {
      if (const auto* failed = std::get_if<messages::RankFailed>(&envelope.body))
        why_.set_value(failed->failure.message);
    };
    role_.on_message = [](const messages::Envelope&, Outbox&) {
      tests::throw_it(tests::Thrown::out_of_range);
    };
    CafStageOptions options;
    options.rank = {3};
    options.now = [] { return std::chrono::nanoseconds(0); };
    options.to_trainer = [](const messages::Envelope&) {};
    options.log = log_.of(Subsystem::actors);
    options.patience = 20ms;
    stage_ = CafStage::create(std::move(options)).value();
    stage_->spawn(kWatcher, std::make_unique<ScriptMachine>(&supervisor_));
    stage_->spawn(kWatched, std::make_unique<ScriptMachine>(&role_));
    stage_->start();
  }

  std::string why() {
    auto told = why_.get_future();
    return told.wait_for(30s) == std::future_status::ready ? told.get() : "nobody said that the rank failed";
  }

  HeardLog log_;
  ScriptMachine::Script supervisor_;
  ScriptMachine::Script role_;
  std::promise<std::string> why_;
  std::unique_ptr<CafStage> stage_;
};

TEST_F(CafSupervision, FailsTheRankForARoleThatThrows) {
  stage_->post({kWatcher, kWatched, {}, messages::Farewell{}});

  const std::string expected = "conductor @ rank 3 failed while it handled Farewell: map::at";
  EXPECT_EQ(why(), expected);
  EXPECT_EQ(log_.text(), expected);
  for (const auto& report : stage_->wait_reports(30s)) {
    if (report.who == kWatched) {
      EXPECT_EQ(report.state, "failed");
    }
  }
}

TEST_F(CafSupervision, FailsTheRankForWorkThrowingInAnotherThread) {
  stage_->blame(kWatched, "the disk of thieves");

  EXPECT_EQ(why(), "conductor @ rank 3 failed while it handled nothing: the disk of thieves");
}

class Fragile final : public caf::event_based_actor {
 public:
  explicit Fragile(caf::actor_config& config) : caf::event_based_actor(config) {}
  caf::behavior make_behavior() override {
    return {[](const RankEvent& event) {
      if (event.committed) tests::throw_it(tests::Thrown::bad_alloc);
    }};
  }
  const char* name() const override { return "plotter"; }
};

TEST_F(CafSupervision, FailsTheRankForASubscriberThatThrows) {
  stage_->subscribe(stage_->system().spawn<Fragile>());

  stage_->post({kWatcher, {{3}, Role::trainer, 0}, {}, messages::StepCommitted{{4}, true}});

  EXPECT_THAT(why(), HasSubstr("an actor of the trainer of rank 3 (plotter, number "));
}

caf::behavior give_up_soon(caf::event_based_actor* self) {
  return {[self](const RankEvent&) { self->quit(caf::make_error(caf::sec::bad_function_call)); }};
}

TEST_F(CafSupervision, FailsTheRankForSubscribersEndingWithAnError) {
  stage_->subscribe(stage_->system().spawn(give_up_soon));

  stage_->post({kWatcher, {{3}, Role::trainer, 0}, {}, messages::StepCommitted{{4}, true}});

  EXPECT_THAT(why(), HasSubstr("an actor of the trainer of rank 3 ("));
}

caf::behavior end_well(caf::event_based_actor* self, std::promise<void>* ended) {
  self->attach_functor([ended] { ended->set_value(); });
  return {[self](const RankEvent&) { self->quit(); }};
}

TEST_F(CafSupervision, MindsNoSubscriberThatEndsAsItShould) {
  std::promise<void> ended;
  stage_->subscribe(stage_->system().spawn(end_well, &ended));

  stage_->post({kWatcher, {{3}, Role::trainer, 0}, {}, messages::StepCommitted{{4}, true}});
  ended.get_future().wait();
  stage_.reset();

  EXPECT_EQ(log_.text(), "");
}

TEST(CafStageTeardownOfMany, EndsThoughActorsOfTheTrainerHoldEveryThread) {
  // What the actors wait for, and roles that stand behind them, outlive the test.
  static std::promise<void> over;
  static const auto never = over.get_future().share();
  static ScriptMachine::Script script;
  constexpr int kActors = 5;
  CafStageOptions options;
  options.workers = 2;
  options.now = [] { return std::chrono::nanoseconds(0); };
  options.patience = 20ms;
  auto stage = CafStage::create(std::move(options)).value();
  stage->spawn({{0}, Role::conductor, 0}, std::make_unique<ScriptMachine>(&script));
  static std::atomic<int> held{0};
  for (int i = 0; i < kActors; ++i) {
    const auto actor = stage->system().spawn([](caf::event_based_actor*) -> caf::behavior {
      return {[](const RankEvent&) {
        held += 1;
        never.wait();
      }};
    });
    stage->subscribe(actor);
    tell(actor, RankEvent{});
  }
  while (held < 2) std::this_thread::yield();
  stage->start();

  stage.reset();

  EXPECT_EQ(script.starts, 0) << "no thread was left for it";
  over.set_value();
}

}  // namespace
}  // namespace troupe::actors
