#include "apps/troupe/bench/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "actors/session/session.hpp"
#include "actors/simulation/simulation.hpp"
#include "apps/pipeline/runner.hpp"
#include "apps/pipeline/session_links.hpp"
#include "core/errors.hpp"
#include "core/schedule/check_schedule.hpp"

namespace troupe::apps {

namespace {

using core::Result;
using std::chrono::nanoseconds;

/// When a stage computed.
struct Busy {
  nanoseconds first = nanoseconds::max();
  nanoseconds last{};
  nanoseconds computed{};
};

/// Passes that take their time and compute nothing.
class TimedWork final : public StageWork {
 public:
  TimedWork(actors::SimulatedRank& rank, const core::PassDurations& milliseconds, std::size_t elements)
      : rank_(rank), milliseconds_(milliseconds), rows_(elements) {}

  Result<void> run(const core::PipelinePass& pass, PassSlots) override {
    const auto duration = std::chrono::duration<double, std::milli>(milliseconds_.of(pass.kind));
    busy_.first = std::min(busy_.first, rank_.device().now());
    rank_.compute(std::chrono::duration_cast<nanoseconds>(duration));
    busy_.last = rank_.device().now();
    busy_.computed += std::chrono::duration_cast<nanoseconds>(duration);
    return {};
  }
  // Nobody reads them, so they are the same for all.
  StageRows input(int) override { return {gpu::view_of(std::span(rows_))}; }
  StageRows output(int, int) override { return input(0); }
  StageRows gradient(int) override { return input(0); }

  const Busy& busy() const { return busy_; }

 private:
  actors::SimulatedRank& rank_;
  core::PassDurations milliseconds_;
  std::vector<float> rows_;
  Busy busy_;
};

Result<Busy> run_stage(actors::SimulatedRank& rank, const core::PipelineSchedule& schedule,
                       const core::PassDurations& milliseconds, std::size_t message_bytes) {
  const int stage = rank.rank().value;
  const bool wraps = schedule.chunks > 1;
  actors::SessionOptions options;
  options.training.pipeline_parallel = schedule.stages;
  options.groups = link_groups(rank.world_size(), schedule.stages, wraps);
  auto session = TRY(actors::Session::join(rank, options, {{fmt::format("stage.{}", stage), {1}}}));
  auto links = TRY(SessionLinks::open(*session, schedule.stages, stage, wraps));
  TimedWork work(rank, milliseconds, message_bytes / sizeof(float));
  TRY(StageRunner(schedule, stage).run(work, links));
  TRY(session->leave());
  return work.busy();
}

Result<PipelineTime> measure(const PipelineBench& bench, core::ScheduleKind kind) {
  const bool is_interleaved = kind == core::ScheduleKind::interleaved;
  const core::ScheduleOptions options{kind, bench.stages, is_interleaved ? bench.chunks : 1,
                                      bench.microbatches};
  auto durations = bench.milliseconds;
  for (double* of : {&durations.forward, &durations.backward_input, &durations.backward_weight})
    *of /= options.chunks;
  const auto schedule = TRY(core::plan_schedule(options));
  TRY(core::check_schedule(schedule));
  const auto theory = core::theoretical_bubble_share(options, durations);
  if (!theory) {
    return core::fail(
        core::Errc::invalid_argument,
        "expected a schedule whose bubble has a formula: as many microbatches as stages, and "
        "weights' backwards no longer than the other passes; found {} of {} microbatches for {} "
        "stages",
        core::name_of(kind), bench.microbatches, bench.stages);
  }
  actors::SimulationOptions simulated;
  simulated.ranks = {bench.stages};
  std::vector<Busy> stages(static_cast<std::size_t>(bench.stages));
  actors::Simulation simulation(simulated);
  const auto report = simulation.run([&](actors::SimulatedRank& rank) -> Result<void> {
    stages[static_cast<std::size_t>(rank.rank().value)] =
        TRY(run_stage(rank, schedule, durations, bench.message_bytes));
    return {};
  });
  for (const auto& result : report.results) TRY(result);
  if (!report.violations.empty())
    return core::fail(core::Errc::internal, "bench: {}", report.violations.front());
  Busy all;
  for (const Busy& stage : stages) {
    all.first = std::min(all.first, stage.first);
    all.last = std::max(all.last, stage.last);
    all.computed += stage.computed;
  }
  const double total = std::chrono::duration<double>(all.last - all.first).count();
  const double computed = std::chrono::duration<double>(all.computed).count();
  return PipelineTime{options, total, 1 - computed / (total * bench.stages), *theory};
}

}  // namespace

Result<std::vector<PipelineTime>> measure_pipelines(const PipelineBench& bench) {
  std::vector<PipelineTime> times;
  for (const auto kind : bench.schedules) times.push_back(TRY(measure(bench, kind)));
  return times;
}

}  // namespace troupe::apps
