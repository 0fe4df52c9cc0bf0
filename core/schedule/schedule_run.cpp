#include "core/schedule/schedule_run.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "core/errors.hpp"
#include "core/schedule/schedule_link.hpp"

namespace troupe::core {

namespace {

class Runner {
 public:
  Runner(const PipelineSchedule& schedule, const PassDurations& durations, int room)
      : schedule_(schedule),
        durations_(durations),
        room_(static_cast<std::size_t>(room)),
        stages_(schedule.passes.size()) {
    for (auto& channels : channels_) channels.resize(stages_.size());
    run_.stages.resize(stages_.size());
  }

  ScheduleRun run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        while (advance(stage)) moved = true;
      }
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stages_[stage].next < schedule_.passes[stage].size()) run_.waits.push_back(wait_of(stage));
    }
    return std::move(run_);
  }

 private:
  struct Stage {
    std::size_t next = 0;   ///< next pass
    bool computed = false;  ///< but not sent yet
    double time = 0;
  };
  /// When each message arrives.
  using Channel = std::deque<double>;

  const PipelinePass& pass_of(std::size_t stage) const {
    return schedule_.passes[stage][stages_[stage].next];
  }
  Channel& channel(const ScheduleLink& link) {
    return channels_[link.is_forward ? 0 : 1][static_cast<std::size_t>(link.from)];
  }

  bool advance(std::size_t index) {
    Stage& stage = stages_[index];
    if (stage.next == schedule_.passes[index].size()) return false;
    const PipelinePass& pass = pass_of(index);
    if (!stage.computed && !compute(index, pass)) return false;
    stage.computed = true;
    if (const auto to = sends(schedule_, static_cast<int>(index), pass)) {
      Channel& out = channel(*to);
      if (out.size() == room_) return false;
      out.push_back(stage.time + durations_.transfer);
    }
    stage.computed = false;
    ++stage.next;
    return true;
  }

  bool compute(std::size_t index, const PipelinePass& pass) {
    Stage& stage = stages_[index];
    double start = stage.time;
    if (const auto from = receives(schedule_, static_cast<int>(index), pass)) {
      Channel& in = channel(*from);
      if (in.empty()) return false;
      start = std::max(start, in.front());
      in.pop_front();
    }
    stage.time = start + durations_.of(pass.kind);
    run_.stages[index].push_back({pass, start, stage.time});
    return true;
  }

  std::string wait_of(std::size_t index) {
    const PipelinePass& pass = pass_of(index);
    const auto name = short_name(pass, schedule_.chunks);
    if (stages_[index].computed) {
      const auto to = sends(schedule_, static_cast<int>(index), pass);
      return fmt::format("stage {} waits to send what {} made to stage {}", index, name, to->to);
    }
    const auto from = receives(schedule_, static_cast<int>(index), pass);
    return fmt::format("stage {} waits for what {} needs of stage {}", index, name, from->from);
  }

  const PipelineSchedule& schedule_;
  PassDurations durations_;
  std::size_t room_;
  std::vector<Stage> stages_;
  std::vector<Channel> channels_[2];  ///< for activations and for gradients, by sending stage
  ScheduleRun run_;
};

/// The link to the neighbour that a pass exchanges with: `away` places further on.
std::optional<ScheduleLink> link_of(const PipelineSchedule& schedule, int stage, const PipelinePass& pass,
                                    bool is_forward, bool sends) {
  const int place = pass.chunk * schedule.stages + stage;
  const int other = place + (is_forward == sends ? 1 : -1);
  if (schedule.stages == 1 || other < 0 || other >= schedule.chunks * schedule.stages) return {};
  const int peer = other % schedule.stages;
  return sends ? ScheduleLink{stage, peer, is_forward} : ScheduleLink{peer, stage, is_forward};
}

}  // namespace

std::optional<ScheduleLink> sends(const PipelineSchedule& schedule, int stage, const PipelinePass& pass) {
  if (pass.kind == PassKind::backward_weight) return {};
  return link_of(schedule, stage, pass, pass.kind == PassKind::forward, true);
}

std::optional<ScheduleLink> receives(const PipelineSchedule& schedule, int stage, const PipelinePass& pass) {
  if (pass.kind == PassKind::backward_weight) return {};
  return link_of(schedule, stage, pass, pass.kind == PassKind::forward, false);
}

double PassDurations::of(PassKind kind) const {
  switch (kind) {
    case PassKind::forward:
      return forward;
    case PassKind::backward:
      return backward_input + backward_weight;
    case PassKind::backward_input:
      return backward_input;
    case PassKind::backward_weight:
      return backward_weight;
  }
  return 0;
}

double ScheduleRun::total() const {
  double total = 0;
  for (const auto& stage : stages) {
    if (!stage.empty()) total = std::max(total, stage.back().end);
  }
  return total;
}

double ScheduleRun::bubble_share() const {
  double busy = 0;
  for (const auto& stage : stages) {
    for (const TimedPass& pass : stage) busy += pass.end - pass.start;
  }
  const double all = total() * static_cast<double>(stages.size());
  return all > 0 ? (all - busy) / all : 0;
}

ScheduleRun run_schedule(const PipelineSchedule& schedule, const PassDurations& durations, int room) {
  CHECK(room > 0, "a channel has room for a message");
  CHECK(static_cast<int>(schedule.passes.size()) == schedule.stages, "a list of passes per stage");
  return Runner(schedule, durations, room).run();
}

}  // namespace troupe::core
