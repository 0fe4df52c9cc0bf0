#include "apps/pipeline/runner.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/schedule/schedule_slots.hpp"

namespace troupe::apps {

using core::PassKind;
using core::Result;

namespace {

/// Rows that are received ahead of the pass that runs, per link.
constexpr std::size_t kAhead = 1;

Result<void> settle(std::optional<std::pair<core::ScheduleLink, StageLinks::Posted>>& waited,
                    StageLinks& links) {
  if (!waited) return {};
  TRY(links.wait(waited->first, waited->second));
  waited.reset();
  return {};
}

}  // namespace

StageRunner::StageRunner(const core::PipelineSchedule& schedule, int stage) {
  const auto& passes = schedule.passes[static_cast<std::size_t>(stage)];
  const auto activations = core::plan_slots(passes), inputs = core::plan_input_slots(passes);
  std::map<int, std::size_t> free_input;   // per slot, the steps that are over when its last user is
  std::map<int, std::size_t> free, begun;  // likewise of activations, and since when its user has it
  for (std::size_t i = 0; i < passes.size(); ++i) {
    Step step{passes[i],
              {activations[i], inputs[i]},
              core::receives(schedule, stage, passes[i]),
              core::sends(schedule, stage, passes[i]),
              0,
              {}};
    const bool is_forward = step.pass.kind == PassKind::forward;
    if (is_forward) begun[activations[i]] = free[activations[i]];
    step.ready = is_forward ? free_input[inputs[i]] : begun[activations[i]];
    if (step.pass.kind == PassKind::backward || step.pass.kind == PassKind::backward_weight) {
      free[activations[i]] = i + 1;
      free_input[inputs[i]] = i + 1;
    }
    if (step.from) queues_[*step.from].steps.push_back(i);
    steps_.push_back(step);
    inputs_ = std::max(inputs_, inputs[i] + 1);
  }
  sent_.resize(free.size());
}

Result<void> StageRunner::run(StageWork& work, StageLinks& links) {
  for (auto& [link, queue] : queues_) queue.posted = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    TRY(post_receives(i, work, links));
    TRY(run_step(steps_[i], work, links));
  }
  for (Sent& sent : sent_) {
    TRY(settle(sent.output, links));
    TRY(settle(sent.gradient, links));
  }
  return {};
}

Result<void> StageRunner::post_receives(std::size_t now, StageWork& work, StageLinks& links) {
  for (auto& [link, queue] : queues_) {
    std::size_t ahead = 0;
    for (std::size_t i = 0; i < queue.posted; ++i) ahead += queue.steps[i] > now ? 1 : 0;
    while (queue.posted < queue.steps.size()) {
      const std::size_t index = queue.steps[queue.posted];
      Step& step = steps_[index];
      if (step.ready > now || (index > now && ahead++ == kAhead)) break;
      const bool is_forward = step.pass.kind == PassKind::forward;
      if (!is_forward) TRY(settle(sent(step.slots.activations).gradient, links));
      const auto rows = is_forward ? work.input(step.slots.input) : work.gradient(step.slots.activations);
      step.received = {link, TRY(links.receive(link, rows))};
      ++queue.posted;
    }
  }
  return {};
}

Result<void> StageRunner::run_step(Step& step, StageWork& work, StageLinks& links) {
  const auto& pass = step.pass;
  const int slot = step.slots.activations;
  const bool is_forward = pass.kind == PassKind::forward;
  TRY(settle(step.received, links));
  auto& sent_before = is_forward ? sent(slot).output : sent(slot).gradient;
  if (pass.kind != PassKind::backward_weight) TRY(settle(sent_before, links));
  TRY(work.run(pass, step.slots));
  if (!step.to) return {};
  const auto rows = is_forward ? work.output(pass.chunk, slot) : work.gradient(slot);
  sent_before = {*step.to, TRY(links.send(*step.to, rows))};
  return {};
}

}  // namespace troupe::apps
