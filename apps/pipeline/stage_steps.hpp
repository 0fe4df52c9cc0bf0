#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_link.hpp"

namespace troupe::apps {

/// The places of a microbatch in a chunk, from forward to the end of backward.
struct PassSlots {
  int activations = 0;  ///< core::plan_slots()
  int input = 0;        ///< core::plan_input_slots()
};

/// A pass of a stage, with where its rows come from and go to.
struct StageStep {
  core::PipelinePass pass;
  PassSlots slots;
  std::optional<core::ScheduleLink> from, to;
  std::size_t ready = 0;  ///< when so many steps are over, its rows may be received
};
std::vector<StageStep> plan_steps(const core::PipelineSchedule& schedule, int stage);

/// Of which microbatches the last place's backward sends something to the first place's, beside the rows: the
/// output layer's part of a tied embedding's gradient.
enum class HeadMessages : std::uint8_t { none, each, last };

/// What a stage does, one after another. Posting is not waiting: rows are waited for where they are needed.
struct StageAction {
  enum class Kind : std::uint8_t { receive, run, send, take_head, give_head };
  Kind kind = Kind::run;
  std::size_t step = 0;  ///< whose rows, or whose part of the gradient

  friend bool operator==(const StageAction&, const StageAction&) = default;
};

/// Every message is posted as soon as its memory allows it, for channels that do not wait for each other.
/// What is received ahead of its pass is one message per channel.
std::vector<StageAction> post_at_once(const core::PipelineSchedule& schedule, int stage, HeadMessages heads);

/// PL-1: for devices that run messages of all channels one after another, in the order in which they were
/// posted. All stages post theirs in one order, that of a run of the schedule in which passes take a unit and
/// whole backwards two: so the earliest message that is not over is the next one of both its ends, and the
/// stages come to their end. The schedule is one that passes its check.
std::vector<StageAction> post_in_one_order(const core::PipelineSchedule& schedule, int stage,
                                           HeadMessages heads);

}  // namespace troupe::apps
