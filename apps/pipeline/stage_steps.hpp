#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_link.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps {

/// The places of a microbatch in a chunk, from forward until the end of backward.
struct PassSlots {
  int activations = 0;  ///< core::plan_slots()
  int input = 0;        ///< core::plan_input_slots()
};

/// Rows in one place, or in several, each a message of its own.
using StageRows = std::vector<gpu::BufferView>;

/// A pass of a stage, and where its rows come from and go to.
struct StageStep {
  core::PipelinePass pass;
  PassSlots slots;
  std::optional<core::ScheduleLink> from, to;
  std::size_t ready = 0;  ///< its rows may be received once this many steps have ended
};
std::vector<StageStep> plan_steps(const core::PipelineSchedule& schedule, int stage);

/// For which microbatches the last place's backward sends something to the first place's besides the rows:
/// the output layer's part of a tied embedding's gradient.
enum class HeadMessages : std::uint8_t { none, each, last };

/// What a stage does, one action after another. Posting does not wait: rows are waited for where they are
/// needed.
struct StageAction {
  enum class Kind : std::uint8_t { receive, run, send, take_head, give_head };
  Kind kind = Kind::run;
  std::size_t step = 0;  ///< the step whose rows, or whose part of the gradient, are meant

  friend bool operator==(const StageAction&, const StageAction&) = default;
};

/// Every message is posted as soon as its memory allows, for channels that do not wait for each other. At
/// most one message per channel is received ahead of its pass.
std::vector<StageAction> post_at_once(const core::PipelineSchedule& schedule, int stage, HeadMessages heads);

/// PL-1: for devices that run messages of all channels one after another, in the order in which they were
/// posted. All stages post theirs in one common order, that of a run of the schedule in which passes take one
/// unit and whole backwards two: so the earliest incomplete message is the next one at both its ends, and all
/// stages finish. The schedule must pass its check.
std::vector<StageAction> post_in_one_order(const core::PipelineSchedule& schedule, int stage,
                                           HeadMessages heads);

}  // namespace troupe::apps
