#include "apps/gpt/distributed_run.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "actors/session/process_world.hpp"
#include "apps/report/html.hpp"
#include "apps/report/perfetto.hpp"
#include "apps/report/progress.hpp"
#include "apps/report/run_record.hpp"
#include "apps/report/summary.hpp"
#include "core/hash.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

using Seconds = std::chrono::duration<double>;

/// What rank 0 tells people about the run, and keeps of it.
class Narrator {
 public:
  static Result<std::unique_ptr<Narrator>> create(const DistributedRunOptions& options, int ranks,
                                                  int restarts,
                                                  std::function<std::chrono::nanoseconds()> now) {
    std::unique_ptr<Narrator> narrator(new Narrator(options, std::move(now)));
    if (options.output.empty()) return narrator;
    RunDescription description{"gpt", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))),
                               ranks, options.steps, options.configuration};
    narrator->writer_ = TRY(RunWriter::open(narrator->record_path(), description, restarts > 0));
    TRY(narrator->event(0, restarts > 0 ? "restart" : "start", fmt::format("{} ranks", ranks)));
    return narrator;
  }

  Result<void> step_done(const actors::StepOutcome& outcome, std::int64_t tokens, double learning_rate,
                         std::optional<double> evaluation) {
    auto seconds = [](std::chrono::nanoseconds time) { return Seconds(time).count(); };
    StepRecord record;
    record.step = outcome.step.value;
    record.seconds_since_start = seconds(now_() - began_);
    record.loss = outcome.loss;
    record.evaluation_loss = evaluation;
    record.step_seconds = seconds(outcome.times.total);
    record.tokens_per_second = static_cast<double>(tokens) / record.step_seconds;
    record.compute_seconds = seconds(outcome.times.compute());
    record.communication_seconds = seconds(outcome.times.communication);
    record.exposed_communication_seconds = seconds(outcome.times.exposed_communication);
    record.optimizer_seconds = seconds(outcome.times.exposed - outcome.times.exposed_communication);
    record.gradient_norm = outcome.gradient_norm;
    record.learning_rate = learning_rate;
    record.committed = outcome.committed;
    progress_.step_done(record, now_());
    if (outcome.committed) tell_launcher(outcome.step);
    if (!outcome.committed)
      progress_.note(fmt::format("step {} was not committed: {}", record.step + 1, outcome.reason));
    return writer_ ? writer_->write(record) : Result<void>{};
  }

  Result<void> event(std::int64_t step, std::string kind, std::string text) {
    return writer_ ? writer_->write(
                         RunEvent{step, Seconds(now_() - began_).count(), std::move(kind), std::move(text)})
                   : Result<void>{};
  }

  Result<void> sample(const RunSample& sample) {
    progress_.finish(now_());
    fmt::print("\n{}{}\n\n", sample.prompt, sample.text);
    return writer_ ? writer_->write(sample) : Result<void>{};
  }

  Result<void> finish(bool traced) {
    if (!writer_) return {};
    writer_.reset();
    fmt::print("{}", summary_table(TRY(read_run(record_path()))));
    auto page = folder_ / "report.html";
    TRY(write_report(record_path(), page));
    fmt::print("report: {}\n", page.string());
    if (!traced) return {};
    auto trace = folder_ / "trace.json";
    TRY(merge_trace_parts(folder_ / "trace", trace));
    fmt::print("trace:  {} (open it at ui.perfetto.dev)\n", trace.string());
    return {};
  }

 private:
  Narrator(const DistributedRunOptions& options, std::function<std::chrono::nanoseconds()> now)
      : now_(std::move(now)),
        began_(now_()),
        folder_(options.output),
        progress_(stdout, progress_options_for(stdout, options.steps), began_) {}

  /// `troupe launch` gives up on a job that fails again and again at the same step; this is how it knows.
  void tell_launcher(core::Step committed) const {
    if (!progress_file_) return;
    std::ofstream(*progress_file_, std::ios::trunc) << committed.value + 1 << '\n';
  }

  std::filesystem::path record_path() const { return folder_ / "run.jsonl"; }

  std::function<std::chrono::nanoseconds()> now_;
  std::chrono::nanoseconds began_;
  std::filesystem::path folder_;
  std::optional<std::string> progress_file_ = actors::process_variables()("TROUPE_PROGRESS_FILE");
  Progress progress_;
  std::optional<RunWriter> writer_;
};

Result<void> make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return core::fail(core::Errc::io, "cannot make the output folder {}: {}", folder, error.message());
  return {};
}

Result<std::string> state_text(DistributedTrainer& trainer) {
  auto parameters = TRY(trainer.parameters());
  const auto& specs = trainer.model().table().specs;
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    hash = core::hash64(std::as_bytes(std::span(parameters[i], specs[i].elements())), hash);
  }
  return fmt::format("parameters {:016x}", hash);
}

Result<void> write_sample(DistributedTrainer& trainer, Narrator& narrator,
                          const DistributedRunOptions& options) {
  if (options.sample_bytes == 0) return {};
  auto parameters = TRY(trainer.parameters());
  RunSample sample{options.steps - 1, options.prompt, {}};
  sample.text =
      TRY(sample_text(trainer.model(), parameters, options.prompt, options.sample_bytes, options.sampling));
  return narrator.sample(sample);
}

Result<void> train(DistributedTrainer& trainer, Narrator* narrator, const DistributedRunOptions& options) {
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    double learning_rate = trainer.learning_rate();
    auto outcome = TRY(trainer.step());
    if (step == options.trace_steps) trainer.session().stop_tracing();
    if (!narrator) continue;
    std::optional<double> evaluation;
    bool due = options.evaluate_every > 0 && step % options.evaluate_every == 0;
    if (due || step == options.steps) evaluation = TRY(trainer.evaluate(options.evaluation_batches));
    TRY(narrator->step_done(outcome, trainer.tokens_per_step(), learning_rate, evaluation));
  }
  if (!narrator) return {};
  TRY(write_sample(trainer, *narrator, options));
  return narrator->event(options.steps, "end", TRY(state_text(trainer)));
}

}  // namespace

Result<void> run_distributed(const DistributedRunOptions& options) {
  const Corpus corpus = TRY(Corpus::open(options.text, options.trainer.model.context));
  actors::ProcessWorldOptions world_options;
  world_options.collectives = options.collectives;
  auto world = TRY(actors::ProcessWorld::create(std::move(world_options)));
  auto trainer = TRY(DistributedTrainer::create(*world, options.trainer, corpus));
  bool traced = options.trainer.session.trace && !options.output.empty();
  if (!options.output.empty()) TRY(make_folder(options.output));
  std::unique_ptr<Narrator> narrator;
  if (world->rank().value == 0) {
    auto now = [&device = world->device()] { return device.now(); };
    int restarts = static_cast<int>(world->epoch().value) - 1;
    narrator = TRY(Narrator::create(options, world->world().value, restarts, now));
  }
  TRY(train(*trainer, narrator.get(), options));
  if (traced) {
    auto folder = options.output + "/trace";
    TRY(make_folder(folder));
    TRY(write_trace_part(folder, {world->rank(), trainer->session().take_trace()}));
  }
  // All ranks leave together, so the parts of the trace are all there afterwards.
  TRY(trainer->session().leave());
  return narrator ? narrator->finish(traced) : Result<void>{};
}

}  // namespace troupe::apps::gpt
