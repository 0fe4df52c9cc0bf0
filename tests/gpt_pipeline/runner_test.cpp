#include "apps/pipeline/runner.hpp"

#include <gtest/gtest.h>

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
  gpu::BufferView input(int slot) override { return place(slot); }
  gpu::BufferView output(int, int slot) override { return place(outputs_ + 2 * slot); }
  gpu::BufferView gradient(int slot) override { return place(outputs_ + 2 * slot + 1); }

  Result<Posted> send(const core::ScheduleLink&, gpu::ConstBufferView rows) override {
    expect_at_rest(rows, "what is sent");
    return post(sending_, rows);
  }
  Result<Posted> receive(const core::ScheduleLink&, gpu::BufferView rows) override {
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
  void expect_at_rest(gpu::ConstBufferView rows, const char* what) const {
    EXPECT_FALSE(sending_.contains(rows.data)) << what << " is still being sent";
    EXPECT_FALSE(receiving_.contains(rows.data)) << what << " is still being received";
  }
  Posted post(std::set<const std::byte*>& under_way, gpu::ConstBufferView rows) {
    under_way.insert(rows.data);
    posted_.push_back(rows.data);
    return Posted{posted_.size() - 1};
  }

  std::vector<float> rows_;
  int outputs_;  ///< after the inputs
  std::vector<const std::byte*> posted_;
  std::set<const std::byte*> sending_, receiving_;
  std::size_t passes_ = 0;
  std::size_t early_ = 0;
};

TEST(StageRunner, TouchesNoRowsThatAreOnTheirWayAndReceivesAhead) {
  using core::ScheduleKind;
  for (const core::ScheduleOptions& options : {core::ScheduleOptions{ScheduleKind::gpipe, 4, 1, 6},
                                               {ScheduleKind::one_f_one_b, 4, 1, 9},
                                               {ScheduleKind::interleaved, 2, 2, 8},
                                               {ScheduleKind::interleaved, 3, 2, 6},
                                               {ScheduleKind::zero_bubble, 4, 1, 9}}) {
    const auto schedule = core::plan_schedule(options).value();
    std::size_t early = 0;
    for (int stage = 0; stage < options.stages; ++stage) {
      const auto what = std::string(core::name_of(options.kind)) + ", stage " + std::to_string(stage);
      StageRunner runner(schedule, stage);
      WatchedStage watched(runner.slots());

      for (int step = 0; step < 2; ++step) ASSERT_TRUE(runner.run(watched, watched)) << what;

      EXPECT_TRUE(watched.is_at_rest()) << what;
      EXPECT_EQ(watched.passes(), 2 * schedule.passes[static_cast<std::size_t>(stage)].size()) << what;
      early += watched.early();
    }
    EXPECT_GT(early, 0U) << core::name_of(options.kind);
  }
}

}  // namespace
}  // namespace troupe::apps
