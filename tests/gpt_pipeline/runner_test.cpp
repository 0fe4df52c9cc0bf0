#include "apps/pipeline/runner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "core/schedule/check_schedule.hpp"

namespace troupe::apps {
namespace {

using core::PassKind;
using core::Result;

/// One stage alone, which notes whose rows are on their way: nobody may touch them.
class WatchedStage final : public StageWork, public StageLinks {
 public:
  explicit WatchedStage(PassSlots slots)
      : rows_(static_cast<std::size_t>(2 * slots.activations + slots.input)), outputs_(slots.input) {}

  Result<void> run(const core::PipelinePass& pass, PassSlots slots) override {
    const int slot = slots.activations;
    const bool is_forward = pass.kind == PassKind::forward;
    expect_at_rest(input(slots.input), "input");  // which backward reads too
    if (is_forward) expect_at_rest(output(pass.chunk, slot), "output");
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_input)
      expect_at_rest(gradient(slot), "gradient");
    early_ += receiving_.size();
    ++passes_;
    return {};
  }
  StageRows input(int slot) override { return {place(slot)}; }
  StageRows output(int, int slot) override { return {place(outputs_ + 2 * slot)}; }
  StageRows gradient(int slot) override { return {place(outputs_ + 2 * slot + 1)}; }

  Result<Posted> send(const core::ScheduleLink&, const StageRows& rows) override {
    expect_at_rest(rows, "what is sent");
    return post(sending_, rows);
  }
  Result<Posted> receive(const core::ScheduleLink&, const StageRows& rows) override {
    expect_at_rest(rows, "what is received");
    return post(receiving_, rows);
  }
  Result<void> wait(const core::ScheduleLink&, Posted posted) override {
    const std::byte* rows = posted_[static_cast<std::size_t>(posted)];
    EXPECT_EQ(sending_.erase(rows) + receiving_.erase(rows), 1U) << "is waited for once";
    return {};
  }

  bool is_at_rest() const { return sending_.empty() && receiving_.empty(); }
  std::size_t passes() const { return passes_; }
  /// Receives that ran under passes which do not need them.
  std::size_t early() const { return early_; }

 private:
  gpu::BufferView place(int index) {
    return gpu::view_of(std::span(&rows_[static_cast<std::size_t>(index)], 1));
  }
  void expect_at_rest(const StageRows& rows, const char* what) const {
    EXPECT_FALSE(sending_.contains(rows.front().data)) << what << " is still being sent";
    EXPECT_FALSE(receiving_.contains(rows.front().data)) << what << " is still being received";
  }
  Posted post(std::set<const std::byte*>& under_way, const StageRows& rows) {
    under_way.insert(rows.front().data);
    posted_.push_back(rows.front().data);
    return Posted{posted_.size() - 1};
  }

  std::vector<float> rows_;
  int outputs_;  ///< after the inputs
  std::vector<const std::byte*> posted_;
  std::set<const std::byte*> sending_, receiving_;
  std::size_t passes_ = 0;
  std::size_t early_ = 0;
};

const core::ScheduleOptions kSchedules[] = {
    {core::ScheduleKind::gpipe, 4, 1, 6},       {core::ScheduleKind::one_f_one_b, 2, 1, 5},
    {core::ScheduleKind::one_f_one_b, 4, 1, 9}, {core::ScheduleKind::one_f_one_b, 5, 1, 3},
    {core::ScheduleKind::interleaved, 2, 2, 8}, {core::ScheduleKind::interleaved, 3, 2, 6},
    {core::ScheduleKind::interleaved, 4, 3, 8}, {core::ScheduleKind::zero_bubble, 4, 1, 9}};

/// Stages whose devices run messages one at a time in the order of their posting, each with both its ends.
class FullDevices {
 public:
  FullDevices(const core::PipelineSchedule& schedule, HeadMessages heads) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      steps_.push_back(plan_steps(schedule, stage));
      for (const StageAction& action : post_in_one_order(schedule, stage, heads))
        lists_[stage].push_back(action);
      for (const auto& action : lists_[stage]) messages_ += action.kind == Kind::run ? 0 : 1;
    }
  }

  /// Waits until nothing moves: messages that went over, each from one step to another.
  int run() {
    int over = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [stage, list] : lists_) {
        for (; !list.empty() && list.front().kind == StageAction::Kind::run; list.pop_front()) moved = true;
      }
      for (auto& [from, list] : lists_) {
        if (list.empty() || !is_send(list.front())) continue;
        auto& other = lists_[receiver_of(from, list.front())];
        if (other.empty() || !fit(list.front(), from, other.front())) continue;
        list.pop_front();
        other.pop_front();
        over += 1;
        moved = true;
      }
    }
    return over;
  }
  int messages() const { return messages_; }
  bool is_done() const {
    return std::all_of(lists_.begin(), lists_.end(), [](const auto& one) { return one.second.empty(); });
  }

 private:
  using Kind = StageAction::Kind;

  static bool is_send(const StageAction& action) {
    return action.kind == Kind::send || action.kind == Kind::give_head;
  }
  const StageStep& step(int stage, const StageAction& action) const {
    return steps_[static_cast<std::size_t>(stage)][action.step];
  }
  int receiver_of(int stage, const StageAction& action) const {
    return action.kind == Kind::send ? step(stage, action).to->to : 0;
  }
  bool fit(const StageAction& sent, int from, const StageAction& received) const {
    const int to = receiver_of(from, sent);
    if (step(from, sent).pass.microbatch != step(to, received).pass.microbatch) return false;
    if (sent.kind == Kind::give_head) return received.kind == Kind::take_head;
    return received.kind == Kind::receive && step(to, received).from == step(from, sent).to;
  }

  std::vector<std::vector<StageStep>> steps_;
  std::map<int, std::deque<StageAction>> lists_;
  int messages_ = 0;
};

TEST(PostInOneOrder, BringsEveryMessageAlsoOnSequentialDevices) {
  for (const auto& options : kSchedules) {
    for (const auto heads : {HeadMessages::none, HeadMessages::each, HeadMessages::last}) {
      const auto schedule = core::plan_schedule(options).value();
      FullDevices devices(schedule, heads);

      const int over = devices.run();

      EXPECT_TRUE(devices.is_done()) << core::name_of(options.kind) << " of " << options.stages;
      EXPECT_EQ(2 * over, devices.messages()) << core::name_of(options.kind);
      const int places = options.stages * options.chunks;
      const int parts = heads == HeadMessages::none   ? 0
                        : heads == HeadMessages::last ? 1
                                                      : options.microbatches;
      EXPECT_EQ(over, 2 * (places - 1) * options.microbatches + parts) << core::name_of(options.kind);
    }
  }
}

/// What is posted ahead comes in the way of what is sent.
TEST(PostInOneOrder, DiffersFromPostingAtOnce) {
  const auto schedule = core::plan_schedule({core::ScheduleKind::one_f_one_b, 2, 1, 4}).value();

  const auto actions = post_at_once(schedule, 0, HeadMessages::none);

  EXPECT_EQ(actions.front().kind, StageAction::Kind::receive);
  EXPECT_EQ(post_in_one_order(schedule, 0, HeadMessages::none).front().kind, StageAction::Kind::run);
}

TEST(StageRunner, TouchesNoRowsInFlightAndReceivesAhead) {
  for (const auto posting : {Posting::at_once, Posting::in_one_order}) {
    for (const auto& options : kSchedules) {
      const auto schedule = core::plan_schedule(options).value();
      std::size_t early = 0;
      for (int stage = 0; stage < options.stages; ++stage) {
        const auto what = std::string(core::name_of(options.kind)) + ", stage " + std::to_string(stage);
        StageRunner runner(schedule, stage, posting);
        WatchedStage watched(runner.slots());

        for (int step = 0; step < 2; ++step) ASSERT_TRUE(runner.run(watched, watched)) << what;

        EXPECT_TRUE(watched.is_at_rest()) << what;
        EXPECT_EQ(watched.passes(), 2 * schedule.passes[static_cast<std::size_t>(stage)].size()) << what;
        early += watched.early();
      }
      EXPECT_GT(early, 0U) << core::name_of(options.kind);
    }
  }
}

}  // namespace
}  // namespace troupe::apps
