#include "actors/session/step_meter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "core/indices.hpp"

namespace troupe::actors {

namespace {

constexpr std::string_view kTrainer = "trainer";
constexpr std::string_view kWaits = "waits for the runtime";

}  // namespace

StepMeter::StepMeter(gpu::Device& device, DataPlane& data, std::uint32_t buckets, Tracer* tracer)
    : device_(device), data_(data), tracer_(tracer), last_gradient_(buckets) {}

StepMeter::~StepMeter() {
  end_profile();
}

void StepMeter::begin_step(core::Step step) {
  if (auto* profiler = device_.profiler(); profiler && !is_profiled_) {
    profiler->begin(kTrainer, fmt::format("step {}", step.value));
    is_profiled_ = true;
  }
  step_ = step;
  step_began_ = device_.now();
  exposed_ = {};
  run_delay_ = {};
  run_delay_before_.reset();
  if (last_step_ >= StepTimes::kLongStep || step.value % StepTimes::kRunDelayEvery == 0)
    run_delay_before_ = device_.run_delay();
  busy_before_ = data_.moment();
  std::fill(last_gradient_.begin(), last_gradient_.end(), std::chrono::nanoseconds{0});
}

core::Result<void> StepMeter::exposed(const std::function<core::Result<void>()>& wait) {
  const core::ProfiledScope range(device_.profiler(), kTrainer, kWaits);
  const auto watch = data_.watch_compute();
  computing_ends();
  const auto begin = data_.moment();
  auto result = wait();
  const auto end = data_.moment();
  computing_begins();
  exposed_ += exposure(begin, end, watch.get());
  if (tracer_)
    tracer_->add(
        {core::TraceEvent::Kind::span, std::string(kTrainer), std::string(kWaits), begin.at, end.at, 0, 0});
  return result;
}

void StepMeter::computing_ends() {
  if (run_delay_before_) run_delay_ += device_.run_delay() - *run_delay_before_;
}

void StepMeter::computing_begins() {
  if (run_delay_before_) run_delay_before_ = device_.run_delay();
}

void StepMeter::gradient_ready(core::BucketIndex bucket, const std::string& parameter) {
  last_gradient_[bucket] = device_.now();
  if (!tracer_) return;
  core::TraceEvent event;
  event.track = kTrainer;
  event.name = parameter + " gradient";
  event.begin = event.end = last_gradient_[bucket];
  event.flow = bucket_flow(step_, bucket);
  tracer_->add(std::move(event));
}

StepTimes StepMeter::end_step() {
  note_latencies();
  computing_ends();
  const auto now = device_.now();
  last_step_ = now - step_began_;
  const auto busy = data_.moment();
  if (tracer_) {
    tracer_->add(
        {core::TraceEvent::Kind::span, "steps", fmt::format("step {}", step_.value), step_began_, now, 0, 0});
  }
  end_profile();
  StepTimes step{last_step_,
                 exposed_.total,
                 exposed_.communication,
                 exposed_.optimizer,
                 busy.communication - busy_before_.communication,
                 busy.optimizer - busy_before_.optimizer,
                 std::nullopt};
  if (run_delay_before_) step.run_delay = run_delay_;
  return step;
}

void StepMeter::note_latencies() {
  launch_latencies_us_.clear();
  std::chrono::nanoseconds previous{};
  for (const auto bucket : last_gradient_.indices()) {
    const auto launched = data_.launches().last_launch(bucket);
    const auto ready = last_gradient_[bucket];
    if (ready.count() != 0 && launched >= ready && previous <= ready)
      launch_latencies_us_.push_back(std::chrono::duration<double, std::micro>(launched - ready).count());
    previous = std::max(previous, launched);  // frozen parameters launch nothing
  }
}

void StepMeter::end_profile() {
  if (is_profiled_) device_.profiler()->end(kTrainer);
  is_profiled_ = false;
}

}  // namespace troupe::actors
