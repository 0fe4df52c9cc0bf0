#include "apps/pipeline/runner.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps {

using core::PassKind;
using core::Result;

namespace {

Result<void> settle(std::optional<std::pair<core::ScheduleLink, StageLinks::Posted>>& waited,
                    StageLinks& links) {
  if (!waited) return {};
  TRY(links.wait(waited->first, waited->second));
  waited.reset();
  return {};
}

}  // namespace

StageRunner::StageRunner(const core::PipelineSchedule& schedule, int stage, Posting posting,
                         HeadMessages heads)
    : steps_(plan_steps(schedule, stage)),
      actions_(posting == Posting::at_once ? post_at_once(schedule, stage, heads)
                                           : post_in_one_order(schedule, stage, heads)),
      received_(steps_.size()) {
  int activations = 0;
  for (const StageStep& step : steps_) {
    activations = std::max(activations, step.slots.activations + 1);
    inputs_ = std::max(inputs_, step.slots.input + 1);
  }
  sent_.resize(static_cast<std::size_t>(activations));
}

Result<void> StageRunner::run(StageWork& work, StageLinks& links) {
  for (const auto& [kind, step] : actions_) {
    switch (kind) {
      case StageAction::Kind::receive:
        TRY(receive(step, work, links));
        break;
      case StageAction::Kind::run:
        TRY(run_step(step, work, links));
        break;
      case StageAction::Kind::send:
        TRY(send(step, work, links));
        break;
      case StageAction::Kind::take_head:
        TRY(work.take_head(steps_[step].pass.microbatch));
        break;
      case StageAction::Kind::give_head:
        TRY(work.give_head(steps_[step].pass.microbatch));
        break;
    }
  }
  for (Sent& sent : sent_) {
    TRY(settle(sent.output, links));
    TRY(settle(sent.gradient, links));
  }
  return {};
}

Result<void> StageRunner::receive(std::size_t index, StageWork& work, StageLinks& links) {
  const StageStep& step = steps_[index];
  const bool is_forward = step.pass.kind == PassKind::forward;
  if (!is_forward) TRY(settle(sent(step.slots.activations).gradient, links));
  const auto rows = is_forward ? work.input(step.slots.input) : work.gradient(step.slots.activations);
  const auto posted = TRY(links.receive(*step.from, rows));
  received_[index] = {*step.from, posted};
  return {};
}

Result<void> StageRunner::run_step(std::size_t index, StageWork& work, StageLinks& links) {
  const StageStep& step = steps_[index];
  const bool is_forward = step.pass.kind == PassKind::forward;
  TRY(settle(received_[index], links));
  auto& before = sent(step.slots.activations);
  if (step.pass.kind != PassKind::backward_weight)
    TRY(settle(is_forward ? before.output : before.gradient, links));
  return work.run(step.pass, step.slots);
}

Result<void> StageRunner::send(std::size_t index, StageWork& work, StageLinks& links) {
  const StageStep& step = steps_[index];
  const int slot = step.slots.activations;
  const bool is_forward = step.pass.kind == PassKind::forward;
  const auto rows = is_forward ? work.output(step.pass.chunk, slot) : work.gradient(slot);
  const auto posted = TRY(links.send(*step.to, rows));
  (is_forward ? sent(slot).output : sent(slot).gradient) = {*step.to, posted};
  return {};
}

}  // namespace troupe::apps
