#pragma once

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/outcomes.hpp"
#include "actors/world/environment.hpp"
#include "apps/gpt/options/run_options.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "apps/report/html.hpp"
#include "apps/report/perfetto.hpp"
#include "apps/report/progress.hpp"
#include "apps/report/run_record.hpp"
#include "apps/report/summary.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"
#include "core/utf8.hpp"
#include "posix/standard_streams.hpp"

namespace troupe::apps::gpt {

/// What rank 0 reports about the run to people, and records.
class Narrator {
  using Seconds = std::chrono::duration<double>;

 public:
  /// `goes_on`: an earlier process began the same run. Its record, if there is one, is continued.
  static core::Result<std::unique_ptr<Narrator>> create(const RunOptions& options, int ranks, bool goes_on,
                                                        std::function<std::chrono::nanoseconds()> now) {
    std::unique_ptr<Narrator> narrator(new Narrator(options, std::move(now)));
    narrator->ranks_ = ranks;
    if (!options.output.empty()) TRY(narrator->open_record(options, goes_on));
    return narrator;
  }

  /// `step` is the one to begin with.
  core::Result<void> start(std::int64_t step, bool again) {
    return event(step, again ? "restart" : "start", fmt::format("{} rank{}", ranks_, ranks_ == 1 ? "" : "s"));
  }

  core::Result<void> step_done(const actors::StepOutcome& outcome, std::int64_t tokens, double learning_rate,
                               std::optional<double> evaluation) {
    auto seconds = [](std::chrono::nanoseconds time) { return Seconds(time).count(); };
    StepRecord record;
    record.step = outcome.step.value;
    record.seconds_since_start = seconds(now_() - began_);
    if (averages_tokens_) record.target_tokens = std::llround(outcome.weight);
    record.loss = record.target_tokens == 0 ? std::nan("") : outcome.loss;
    record.evaluation_loss = evaluation;
    record.step_seconds = seconds(outcome.times.total);
    // Unknown for a step that other processes took.
    if (record.step_seconds > 0) record.tokens_per_second = static_cast<double>(tokens) / record.step_seconds;
    record.compute_seconds = seconds(outcome.times.compute());
    record.communication_seconds = seconds(outcome.times.communication);
    record.exposed_communication_seconds = seconds(outcome.times.exposed_communication);
    record.optimizer_seconds = seconds(outcome.times.exposed_optimizer);
    record.other_wait_seconds = seconds(outcome.times.other_waits());
    record.gradient_norm = outcome.gradient_norm;
    record.learning_rate = learning_rate;
    if (peak_flops_ > 0) {
      record.model_flop_utilisation = record.tokens_per_second * flops_per_token_ / (peak_flops_ * ranks_);
    }
    record.committed = outcome.committed;
    progress_.step_done(record, now_());
    if (outcome.committed) tell_launcher(outcome.step);
    if (!outcome.committed)
      progress_.note(fmt::format("step {} was not committed: {}", record.step + 1, outcome.reason));
    return keep(record);
  }

  /// Whether an earlier process of the run has recorded the step.
  bool has_recorded(core::Step step) const { return step.value <= recorded_; }

  core::Result<void> event(std::int64_t step, std::string kind, std::string text) {
    return keep(RunEvent{step, Seconds(now_() - began_).count(), std::move(kind), std::move(text)});
  }

  /// A line between those of progress, and in the record.
  core::Result<void> say(std::int64_t step, std::string kind, std::string text) {
    progress_.note(text);
    return event(step, std::move(kind), std::move(text));
  }

  core::Result<void> saved(const actors::SaveResult& save, bool training_goes_on) {
    if (!save.committed) {
      return say(save.step.value, "save failed",
                 fmt::format("the save after step {} failed{}: {}", save.step.value,
                             training_goes_on ? ", training goes on" : "", save.committed.error().message));
    }
    if (!save.warning.empty()) progress_.note("warning: " + save.warning);
    return event(save.step.value, "save", fmt::format("{}, {} bytes", save.name, save.bytes));
  }

  core::Result<void> pipeline(std::int64_t step, const PipelineTimeline& timeline) {
    const auto& [schedule, run, theory] = timeline;
    RunPipeline shown{step, std::string(core::name_of(schedule.kind)), run.bubble_share(), theory, {}};
    for (const auto& stage : run.stages) {
      auto& passes = shown.stages.emplace_back();
      for (const auto& [pass, start, end] : stage)
        passes.push_back({core::short_name(pass, schedule.chunks), start, end});
    }
    TRY(keep(shown));
    const auto expected = theory ? fmt::format(", {:.1f} % in theory", 100 * *theory) : "";
    return say(step + 1, "pipeline",
               fmt::format("{:.1f} % of the stages' time is bubble{}", 100 * shown.bubble_share, expected));
  }

  core::Result<void> traffic(std::int64_t step, const std::vector<AxisTraffic>& traffic) {
    RunTraffic shown{.step = step, .axes = {}};
    std::string text;
    for (const auto& [axis, sent] : traffic) {
      shown.axes.push_back({axis, sent.launches, sent.bytes});
      text += fmt::format("{}{} {:.3f}", text.empty() ? "" : ", ", axis,
                          static_cast<double>(sent.bytes) / (1024.0 * 1024.0));
    }
    TRY(keep(shown));
    return say(step + 1, "traffic", "rank 0 sends in a step, in MiB: " + text);
  }

  core::Result<void> local_save_failed(const actors::SaveResult& save) {
    return say(save.step.value, "local save failed",
               fmt::format("the local save after step {} failed, training goes on: {}", save.step.value,
                           save.committed.error().message));
  }

  core::Result<void> expert_load(std::int64_t step, const ExpertTally& tally) {
    if (!writer_ || tally.layers() == 0) return {};
    ExpertLoadRecord record{.step = step, .layers = {}};
    for (std::size_t layer = 0; layer < tally.layers(); ++layer) {
      const auto chosen = tally.chosen(layer), dropped = tally.dropped(layer);
      record.layers.push_back({.layer = static_cast<std::int64_t>(layer),
                               .chosen = {chosen.begin(), chosen.end()},
                               .dropped = {dropped.begin(), dropped.end()}});
    }
    return keep(record);
  }

  core::Result<void> sample(const RunSample& sample) {
    progress_.finish(now_());
    posix::tell(stdout, fmt::format("\n{}\n\n", core::printable_of(sample.prompt + sample.text)));
    return keep(sample);
  }

  core::Result<void> finish(bool traced) {
    if (!writer_) return {};
    writer_.reset();
    posix::tell(stdout, summary_table(TRY(read_run(record_path()))));
    auto page = folder_ / "report.html";
    TRY(write_report(record_path(), page));
    posix::tell(stdout, fmt::format("report: {}\n", page.string()));
    if (!traced) return {};
    auto trace = folder_ / "trace.json";
    TRY(merge_trace_parts(folder_ / "trace", {ranks_}, trace));
    posix::tell(stdout, fmt::format("trace:  {} (open it at ui.perfetto.dev)\n", trace.string()));
    return {};
  }

 private:
  Narrator(const RunOptions& options, std::function<std::chrono::nanoseconds()> now)
      : now_(std::move(now)),
        began_(now_()),
        folder_(options.output),
        peak_flops_(options.peak_flops),
        averages_tokens_(options.trainer.loss_average == LossAverage::tokens),
        flops_per_token_(training_flops_per_token(options.trainer.model, options.trainer.microbatch.length)),
        progress_(stdout, progress_options_for(stdout, options.steps), began_) {}

  core::Result<void> open_record(const RunOptions& options, bool goes_on) {
    const double unix_seconds = Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
    const auto started_at =
        fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
    RunDescription description{"gpt", started_at, ranks_, options.steps, options.configuration, unix_seconds};
    const auto earlier = read_run(record_path());
    const bool continues = goes_on && earlier;
    if (continues) go_on_after(*earlier, description);
    if (!continues) {
      const auto aside = TRY(set_record_aside(record_path()));
      if (!aside.empty()) progress_.note("the record of an earlier run is now " + aside.string());
    }
    writer_ = TRY(RunWriter::open(record_path(), description, continues));
    return continues ? writer_->write(description) : core::Result<void>{};
  }

  /// Training goes on without its record: what it is about is in the checkpoints.
  template <class Record>
  core::Result<void> keep(const Record& record) {
    if (!writer_) return {};
    if (const auto written = writer_->write(record); !written) {
      writer_.reset();
      progress_.note("warning: the record ends here, training goes on: " + written.error().message);
    }
    return {};
  }

  /// One clock for all processes of a run: it began with the first start in its record.
  void go_on_after(const RunRecord& earlier, RunDescription& description) {
    const Seconds before(seconds_since_start(earlier, description.started_unix_seconds));
    began_ -= std::chrono::ceil<std::chrono::nanoseconds>(before);
    if (!earlier.steps.empty()) recorded_ = earlier.steps.back().step;
    if (earlier.description.started_at.empty()) return;  // cut off before its first line
    description.started_at = earlier.description.started_at;
    description.started_unix_seconds = earlier.description.started_unix_seconds;
  }

  /// `troupe launch` gives up on a job that repeatedly fails at the same step; this tells it the step.
  void tell_launcher(core::Step committed) const {
    if (!progress_file_) return;
    std::ofstream(*progress_file_, std::ios::trunc) << core::steps_through(committed).value << '\n';
  }

  std::filesystem::path record_path() const { return folder_ / "run.jsonl"; }

  std::function<std::chrono::nanoseconds()> now_;
  std::chrono::nanoseconds began_;  ///< when the job began, on this process's clock
  std::filesystem::path folder_;
  double peak_flops_;  ///< of one device; 0: unknown
  bool averages_tokens_;
  double flops_per_token_;
  int ranks_ = 1;
  std::int64_t recorded_ = -1;  ///< the last step of an earlier process
  std::optional<std::string> progress_file_ = actors::process_variables()("TROUPE_PROGRESS_FILE");
  Progress progress_;
  std::optional<RunWriter> writer_;
};

}  // namespace troupe::apps::gpt
