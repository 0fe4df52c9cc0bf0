#include "core/schedule/check_schedule.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/schedule/schedule_link.hpp"

namespace troupe::core {

namespace {

std::string describe(const PipelinePass& pass) {
  return fmt::format("{} of microbatch {} in chunk {}", name_of(pass.kind), pass.microbatch, pass.chunk);
}

/// Checks one stage's list, pass by pass.
class StageCheck {
 public:
  StageCheck(const PipelineSchedule& schedule, int stage) : schedule_(schedule), stage_(stage) {}

  /// Returns the peak of activations.
  Result<int> run() {
    for (const PipelinePass& pass : schedule_.passes[static_cast<std::size_t>(stage_)]) TRY(take(pass));
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch)
        TRY(all_done(microbatch, chunk));
    }
    return peak_;
  }

 private:
  bool is_done(PassKind kind, const PipelinePass& pass) const {
    return done_.contains({kind, pass.microbatch, pass.chunk});
  }

  Result<void> take(const PipelinePass& pass) {
    if (pass.microbatch < 0 || pass.microbatch >= schedule_.microbatches || pass.chunk < 0 ||
        pass.chunk >= schedule_.chunks)
      return complain("has a {}, but there are {} microbatches and {} chunks", pass);
    if (!done_.insert(pass).second) return complain("does the {} twice", pass);
    const bool is_forward = pass.kind == PassKind::forward;
    if (!is_forward && !is_done(PassKind::forward, pass))
      return complain("does the {} before its forward", pass);
    if (pass.kind == PassKind::backward_weight && !is_done(PassKind::backward_input, pass))
      return complain("does the {} before that of its inputs", pass);
    const bool is_split = is_done(PassKind::backward_input, pass) || is_done(PassKind::backward_weight, pass);
    if (is_split && is_done(PassKind::backward, pass))
      return complain("does the {} beside a backward that is not split", pass);
    if (is_forward) peak_ = std::max(peak_, ++kept_);
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_weight) --kept_;
    return {};
  }

  Result<void> all_done(int microbatch, int chunk) const {
    const auto has = [&](PassKind kind) { return done_.contains({kind, microbatch, chunk}); };
    if (!has(PassKind::forward)) return complain("never does the {}", {PassKind::forward, microbatch, chunk});
    if (has(PassKind::backward) || has(PassKind::backward_weight)) return {};
    return complain(
        "never does the {}",
        {has(PassKind::backward_input) ? PassKind::backward_weight : PassKind::backward, microbatch, chunk});
  }

  Result<void> complain(const char* what, const PipelinePass& pass) const {
    return fail(Errc::invalid_argument, "stage {} {}", stage_,
                fmt::format(fmt::runtime(what), describe(pass), schedule_.microbatches, schedule_.chunks));
  }

  const PipelineSchedule& schedule_;
  int stage_;
  std::set<PipelinePass> done_;
  int kept_ = 0, peak_ = 0;
};

/// What passes through a channel: microbatch, and the model place of the pass that produces it.
using Message = std::pair<int, int>;

/// Whether messages are received in the order in which they are sent.
Result<void> check_order(const PipelineSchedule& schedule) {
  std::map<ScheduleLink, std::vector<Message>> sent, received;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const PipelinePass& pass : schedule.passes[static_cast<std::size_t>(stage)]) {
      const int place = pass.chunk * schedule.stages + stage;
      if (const auto link = sends(schedule, stage, pass)) sent[*link].push_back({pass.microbatch, place});
      if (const auto link = receives(schedule, stage, pass))
        received[*link].push_back({pass.microbatch, place + (link->is_forward ? -1 : 1)});
    }
  }
  // Every microbatch goes through every link once, so the lists have the same length.
  for (const auto& [link, wanted] : received) {
    const auto& found = sent[link];
    const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), found.begin(), found.end());
    if (a == wanted.end()) continue;
    const auto text = [&](const Message& message) {
      return fmt::format("microbatch {} (chunk {})", message.first, message.second / schedule.stages);
    };
    return fail(Errc::invalid_argument,
                "stage {} wants the {} of {} from stage {} as message {}, which sends {} then", link.to,
                link.is_forward ? "activations" : "gradients", text(*a), link.from, a - wanted.begin(),
                b == found.end() ? "nothing" : text(*b));
  }
  return {};
}

/// On a single stage the chunks follow each other without a channel.
Result<void> check_single_stage(const PipelineSchedule& schedule) {
  std::set<PipelinePass> done;
  for (const PipelinePass& pass : schedule.passes.front()) {
    auto before = pass;
    const bool is_forward = pass.kind == PassKind::forward;
    before.chunk += is_forward ? -1 : 1;
    const bool has_before = before.chunk >= 0 && before.chunk < schedule.chunks;
    auto whole = before;
    if (pass.kind == PassKind::backward_input) whole.kind = PassKind::backward;
    if (pass.kind == PassKind::backward) whole.kind = PassKind::backward_input;
    if (has_before && pass.kind != PassKind::backward_weight && !done.contains(before) &&
        !done.contains(whole))
      return fail(Errc::invalid_argument, "stage 0 does the {} before that of chunk {}", describe(pass),
                  before.chunk);
    done.insert(pass);
  }
  return {};
}

}  // namespace

Result<ScheduleFacts> check_schedule(const PipelineSchedule& schedule, int room) {
  if (schedule.stages < 1 || static_cast<int>(schedule.passes.size()) != schedule.stages || room < 1)
    return fail(Errc::invalid_argument,
                "expected a list of passes for each of {} stages, found {}, and room 1+", schedule.stages,
                schedule.passes.size());
  ScheduleFacts facts;
  for (int stage = 0; stage < schedule.stages; ++stage)
    facts.peak_activations.push_back(TRY(StageCheck(schedule, stage).run()));
  if (schedule.stages == 1) TRY(check_single_stage(schedule));
  TRY(check_order(schedule));
  const auto run = run_schedule(schedule, {}, room);
  if (!run.waits.empty())
    return fail(Errc::invalid_argument, "the stages wait for each other for ever: {}",
                fmt::format("{}", fmt::join(run.waits, "; ")));
  return facts;
}

std::optional<double> theoretical_bubble_share(const ScheduleOptions& options,
                                               const PassDurations& durations) {
  const double p = options.stages, v = options.chunks, m = options.microbatches;
  if (options.microbatches < options.stages) return {};
  if (options.kind != ScheduleKind::zero_bubble) return (p - 1) / (v * m + p - 1);
  const double F = durations.forward, B = durations.backward_input, W = durations.backward_weight;
  if (W > F || W > B) return {};
  const double bubble = (p - 1) * (F + B - W);
  return bubble / (m * (F + B + W) + bubble);
}

}  // namespace troupe::core
