#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "apps/pipeline/stage_steps.hpp"
#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_link.hpp"
#include "gpu/buffer.hpp"

namespace troupe::apps {

/// What a stage does in its passes, and where the rows are that it receives and sends: in its device's
/// memory. Passes may be only enqueued when run() returns.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual core::Result<void> run(const core::PipelinePass& pass, PassSlots slots) = 0;

  /// A forward's input, in a slot of inputs, and its output.
  virtual StageRows input(int slot) = 0;
  virtual StageRows output(int chunk, int slot) = 0;
  /// With respect to the output before backward, to the input after it.
  virtual StageRows gradient(int slot) = 0;

  /// Posts a tied embedding's messages: the first stage's receive of what its backward of the microbatch will
  /// add, one at a time, and the last stage's send after its backward.
  virtual core::Result<void> take_head(int microbatch) {
    (void)microbatch;
    return {};
  }
  virtual core::Result<void> give_head(int microbatch) {
    (void)microbatch;
    return {};
  }
};

/// The channels to other stages. Rows must stay alive, and those being sent unchanged, until wait().
class StageLinks {
 public:
  enum class Posted : std::uint64_t {};

  virtual ~StageLinks() = default;
  virtual core::Result<Posted> send(const core::ScheduleLink& link, const StageRows& rows) = 0;
  virtual core::Result<Posted> receive(const core::ScheduleLink& link, const StageRows& rows) = 0;
  /// For what is computed from here on.
  virtual core::Result<void> wait(const core::ScheduleLink& link, Posted posted) = 0;
};

/// When a stage posts its messages.
enum class Posting : std::uint8_t {
  at_once,       ///< post_at_once()
  in_one_order,  ///< post_in_one_order()
};

/// Carries out the passes of one stage of a schedule that passes its check. A receive is posted before its
/// turn, once its slot is free; a send is waited for when its rows are needed again.
class StageRunner {
 public:
  StageRunner(const core::PipelineSchedule& schedule, int stage, Posting posting = Posting::at_once,
              HeadMessages heads = HeadMessages::none);

  /// Runs all passes, and completes all sends. After an Error rows may still be in flight.
  core::Result<void> run(StageWork& work, StageLinks& links);
  /// How many slots of each kind it uses.
  PassSlots slots() const { return {static_cast<int>(sent_.size()), inputs_}; }

 private:
  using Waited = std::optional<std::pair<core::ScheduleLink, StageLinks::Posted>>;
  struct Sent {
    Waited output, gradient;
  };

  core::Result<void> receive(std::size_t step, StageWork& work, StageLinks& links);
  core::Result<void> send(std::size_t step, StageWork& work, StageLinks& links);
  core::Result<void> run_step(std::size_t step, StageWork& work, StageLinks& links);
  Sent& sent(int slot) { return sent_[static_cast<std::size_t>(slot)]; }

  std::vector<StageStep> steps_;
  std::vector<StageAction> actions_;
  int inputs_ = 0;
  std::vector<Waited> received_;  ///< by step
  std::vector<Sent> sent_;        ///< by slot: sends not known to have arrived
};

}  // namespace troupe::apps
