#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/result.hpp"
#include "core/schedule/pipeline_schedule.hpp"
#include "core/schedule/schedule_link.hpp"

namespace troupe::apps {

/// The places of a microbatch in a chunk, from forward to the end of backward.
struct PassSlots {
  int activations = 0;  ///< core::plan_slots()
  int input = 0;        ///< core::plan_input_slots()
};

/// What a stage does in its passes, and where the rows lie that it receives and sends.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual core::Result<void> run(const core::PipelinePass& pass, PassSlots slots) = 0;

  /// What a forward reads, in a slot of inputs, and what it writes.
  virtual std::span<float> input(int slot) = 0;
  virtual std::span<float> output(int chunk, int slot) = 0;
  /// Of the output before backward, of the input after it.
  virtual std::span<float> gradient(int slot) = 0;
};

/// The channels to other stages, each with an order of its own: what is posted to one never waits for
/// another. Rows stay alive, what is sent also unchanged, until wait().
class StageLinks {
 public:
  enum class Posted : std::uint64_t {};

  virtual ~StageLinks() = default;
  virtual core::Result<Posted> send(const core::ScheduleLink& link, std::span<const float> rows) = 0;
  virtual core::Result<Posted> receive(const core::ScheduleLink& link, std::span<float> rows) = 0;
  virtual core::Result<void> wait(const core::ScheduleLink& link, Posted posted) = 0;
};

/// Carries out the passes of one stage of a schedule that passes its check. A receive is posted before its
/// turn, as soon as its slot is free; a send is waited for when its rows are needed again.
class StageRunner {
 public:
  StageRunner(const core::PipelineSchedule& schedule, int stage);

  /// All passes, and all sends to their end. After an Error rows may still be on their way.
  core::Result<void> run(StageWork& work, StageLinks& links);
  /// As many of each.
  PassSlots slots() const { return {static_cast<int>(sent_.size()), inputs_}; }

 private:
  using Waited = std::optional<std::pair<core::ScheduleLink, StageLinks::Posted>>;
  struct Step {
    core::PipelinePass pass;
    PassSlots slots;
    std::optional<core::ScheduleLink> from, to;
    std::size_t ready = 0;  ///< when so many steps are over, its rows may be received
    Waited received;
  };
  struct Queue {
    std::vector<std::size_t> steps;  ///< that receive from a link, in order
    std::size_t posted = 0;
  };
  struct Sent {
    Waited output, gradient;
  };

  core::Result<void> post_receives(std::size_t now, StageWork& work, StageLinks& links);
  core::Result<void> run_step(Step& step, StageWork& work, StageLinks& links);
  Sent& sent(int slot) { return sent_[static_cast<std::size_t>(slot)]; }

  std::vector<Step> steps_;
  std::map<core::ScheduleLink, Queue> queues_;
  int inputs_ = 0;
  std::vector<Sent> sent_;  ///< of each slot, what is not known to have arrived
};

}  // namespace troupe::apps
