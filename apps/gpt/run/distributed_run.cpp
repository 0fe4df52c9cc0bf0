#include "apps/gpt/run/distributed_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/step/rank_program.hpp"
#include "actors/shell/process_world.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/world/leave_signal.hpp"
#include "actors/world/signal_watcher.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/gpt/layers/matmul.hpp"
#include "apps/gpt/run/beginning.hpp"
#include "apps/gpt/run/distributed_trainer.hpp"
#include "apps/gpt/run/narrator.hpp"
#include "apps/gpt/stage/host_stage.hpp"
#include "apps/report/perfetto.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/program/memory.hpp"
#include "core/step_count.hpp"
#include "gpu/devices.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// What the driver says about the GPU of this name; empty for the host.
Result<std::optional<gpu::CudaDeviceInfo>> gpu_info(const std::string& name) {
  if (name == "host") return std::optional<gpu::CudaDeviceInfo>{};
  for (const auto& info : TRY(gpu::list_cuda_devices())) {
    if (name == fmt::format("cuda:{}", info.index)) return {info};
  }
  return core::fail(core::Errc::not_found, "expected the GPU {}, but this process does not see it", name);
}

/// The options with the GPU's assumed peak, unless it was given.
RunOptions with_peak(RunOptions options, const std::optional<gpu::CudaDeviceInfo>& info) {
  if (!info) return options;
  const bool is_given = options.peak_flops > 0;
  if (!is_given) options.peak_flops = peak_flops(info->major, info->minor);
  options.configuration.emplace_back("GPU", info->name);
  options.configuration.emplace_back(
      "peak FLOP/s", options.peak_flops > 0
                         ? fmt::format("{:.4g} ({})", options.peak_flops,
                                       is_given ? "given" : "assumed: dense bf16 of the compute capability")
                         : "not known: no utilisation is shown");
  return options;
}

Result<void> make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return core::fail(core::Errc::io, "cannot make the output folder {}: {}", folder, error.message());
  return {};
}

Result<std::string> state_text(DistributedTrainer& trainer) {
  return fmt::format("parameters {:016x}", TRY(trainer.parameter_hash()));
}

Result<void> write_sample(DistributedTrainer& trainer, Narrator* narrator, const RunOptions& options,
                          const std::vector<std::int32_t>& prompt, TextCodec& codec) {
  if (options.sample_bytes == 0) return {};
  RunSample sample{options.steps - 1, options.prompt, {}};
  auto next = [&](std::span<const std::int32_t> tokens) { return trainer.logits(tokens); };
  sample.text = TRY(sample_text(next, options.trainer.microbatch.length, prompt, options.sample_bytes,
                                options.sampling, codec));
  return narrator ? narrator->sample(sample) : Result<void>{};
}

Result<void> export_trained(DistributedTrainer& trainer, Narrator* narrator, const RunOptions& options) {
  const auto& to = options.export_to;
  if (to.directory.empty()) return {};
  if (!narrator) return trainer.hand_over_parameters();
  TRY(trainer.export_model(to));
  return narrator->say(options.steps, "export", fmt::format("exported the model to {}", to.directory));
}

/// What an earlier epoch of the job has exported makes way, under a name of its own: the job began only where
/// nothing was.
Result<void> set_aside_export(const std::string& directory, core::Epoch epoch) {
  std::error_code error;
  if (directory.empty() || epoch.value <= 1 || !std::filesystem::exists(directory, error)) return {};
  const auto aside = fmt::format("{}.before_epoch_{}", directory, epoch.value);
  std::filesystem::rename(directory, aside, error);
  if (error) return core::fail(core::Errc::io, "cannot rename {}: {}", directory, error.message());
  fmt::print("{}, exported by an earlier epoch of this job, is {} now\n", directory, aside);
  return {};
}

/// What signals request; the steps bring it to all ranks.
class Requests {
 public:
  Requests()
      : save_(SIGUSR2, [this] { wishes_ |= actors::kWishSave; }),
        leave_([this] { wishes_ |= actors::kWishLeave; }) {}

  /// From now on there are steps to bring requests to all ranks.
  void begin() { leave_.listen(); }
  std::uint32_t take() { return wishes_.exchange(0); }
  /// What another rank requested first is not requested again.
  void drop(std::uint32_t wishes) { wishes_ &= ~wishes; }

 private:
  std::atomic<std::uint32_t> wishes_{0};
  actors::SignalWatcher save_;
  actors::LeaveSignal leave_;
};

Result<void> tell_of_resume(Narrator& narrator, const std::optional<actors::Restored>& restored) {
  if (!restored) return {};
  const auto step = restored->step.value;
  for (const auto& damaged : restored->passed_over) {
    TRY(narrator.say(step, "passed over", fmt::format("passed over: {}", damaged)));
  }
  return narrator.say(step, "resume", fmt::format("resumed from {}, after {} steps", restored->name, step));
}

/// Where a step was taken whose outcome is to be reported.
enum class Taken : std::uint8_t {
  here,
  before,  ///< in an earlier epoch, and it may have been reported
  saved,   ///< the same, and this epoch began from its save
};

constexpr const char* kNoEvaluation =
    "no target token in the sequences of the evaluation, so it has no loss; --evaluation-batches may take "
    "more";

class Run {
 public:
  Run(DistributedTrainer& trainer, Narrator* narrator, Requests* requests, const RunOptions& options,
      const std::vector<std::int32_t>& prompt, TextCodec& codec)
      : trainer_(trainer),
        narrator_(narrator),
        last_step_(options.steps),
        requests_(requests),
        options_(options),
        prompt_(prompt),
        codec_(codec) {}

  /// `restored` is what this epoch goes on from; null in the first, which reports nothing of earlier jobs.
  Result<RunEnd> train(const actors::Restored* restored) {
    auto& session = trainer_.session();
    first_step_ = session.next_step().value;
    if (options_.trace_steps == 0) session.stop_tracing();
    // What was decided before the epoch is reported, and followed by what is due, once.
    auto last = restored ? restored->last : std::nullopt;
    const auto taken = restored && restored->is_in_memory ? Taken::before : Taken::saved;
    while (last || session.next_step().value < options_.steps) {
      const auto wishes = last ? TRY(after_step(*std::exchange(last, {}), taken)) : TRY(one_step());
      if ((wishes & actors::kWishLeave) == 0) continue;
      TRY(session.wait_saves());
      TRY(session.wait_local_saves());
      TRY(report_saves());
      if (narrator_) TRY(narrator_->say(last_step_, "leave", leave_text()));
      return RunEnd::preempted;
    }
    TRY(session.wait_saves());
    TRY(session.wait_local_saves());
    TRY(report_saves());
    if (narrator_ && session.world_size().value > 1 && !trainer_.traffic().empty())
      TRY(narrator_->traffic(session.next_step().value - 1, trainer_.traffic()));
    if (!takes_part()) return RunEnd::finished;
    const auto timeline = TRY(trainer_.pipeline_timeline());
    if (timeline && narrator_) TRY(narrator_->pipeline(session.next_step().value - 1, *timeline));
    // What was trained is on disk before anything else can fail.
    TRY(export_trained(trainer_, narrator_, options_));
    TRY(write_sample(trainer_, narrator_, options_, prompt_, codec_));
    const auto text = TRY(state_text(trainer_));
    if (narrator_) TRY(narrator_->event(options_.steps, "end", text));
    return RunEnd::finished;
  }

  /// Once train() has returned: whether the state with which training ended is in the directory of
  /// checkpoints, if there is one. The same on all ranks.
  Result<void> last_save() const {
    if (last_save_) return {};
    return core::fail(core::Errc::io,
                      "the state after {} steps was not saved: {}; start the job again when the cause is "
                      "removed: it repeats the steps since the newest checkpoint",
                      last_step_, last_save_.error().message);
  }

 private:
  std::string leave_text() const {
    if (last_save_) return fmt::format("asked to leave: saved after {} steps", last_step_);
    return fmt::format("asked to leave after {} steps, which are not saved: {}", last_step_,
                       last_save_.error().message);
  }

  /// Returns the wishes of all ranks.
  Result<std::uint32_t> one_step() {
    return after_step(TRY(trainer_.step(requests_ != nullptr ? requests_->take() : 0)), Taken::here);
  }

  Result<std::uint32_t> after_step(const actors::StepOutcome& outcome, Taken taken) {
    const double learning_rate = trainer_.learning_rate_of(outcome.step);
    if (requests_ != nullptr) requests_->drop(outcome.wishes);
    const auto done = core::steps_through(outcome.step).value;
    if ((outcome.wishes & actors::kWishLeave) != 0) last_step_ = done;
    if (done - first_step_ == options_.trace_steps) trainer_.session().stop_tracing();
    const bool due = options_.save_every > 0 && done % options_.save_every == 0;
    const bool wants_save = requests_ != nullptr && (due || done == options_.steps || outcome.wishes != 0);
    const bool has_save = taken == Taken::saved || (taken == Taken::before && TRY(is_saved({done})));
    if (wants_save && !has_save) TRY(trainer_.save());
    const bool local_due = options_.local_every > 0 && done % options_.local_every == 0;
    if (!options_.world.local_checkpoint_directory.empty() && local_due && taken != Taken::saved)
      TRY(trainer_.save_local());
    TRY(report_saves());
    std::optional<double> evaluation;
    const bool evaluates = options_.evaluate_every > 0 && done % options_.evaluate_every == 0;
    const bool looks = evaluates || done == options_.steps;
    const auto load = looks ? TRY(trainer_.take_expert_load()) : ExpertTally();
    if (takes_part() && looks) {
      evaluation = TRY(trainer_.evaluate(options_.evaluation_batches));
      if (narrator_ && !evaluation) TRY(narrator_->say(done, "evaluation", kNoEvaluation));
    }
    if (narrator_ && (taken == Taken::here || !narrator_->has_recorded(outcome.step))) {
      TRY(narrator_->step_done(outcome, trainer_.tokens_per_step(), learning_rate, evaluation));
      TRY(narrator_->expert_load(outcome.step.value, load));
    }
    return outcome.wishes;
  }

  /// By a save that ended in an earlier epoch.
  Result<bool> is_saved(core::StepCount done) const {
    const auto storage = TRY(actors::PosixStorage::open(options_.world.checkpoint_directory));
    const auto all = TRY(actors::list_checkpoints(*storage));
    return std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.step == done; });
  }

  /// Whether this rank takes part in computations between steps: the one that reports, or all that keep a
  /// part of the parameters.
  bool takes_part() const { return narrator_ != nullptr || trainer_.has_sharded_parameters(); }

  Result<void> report_saves() {
    for (const auto& save : trainer_.session().take_saves()) {
      if (narrator_) TRY(narrator_->saved(save, save.step.value < last_step_));
      last_save_ = save.committed;
    }
    for (const auto& save : trainer_.session().take_local_saves()) {
      if (narrator_ && !save.committed) TRY(narrator_->local_save_failed(save));
    }
    return {};
  }

  DistributedTrainer& trainer_;
  Narrator* narrator_;
  std::int64_t first_step_ = 0;  ///< the first of this process
  std::int64_t last_step_;       ///< steps that are done when training ends, as far as is known
  Result<void> last_save_;       ///< of those that have ended
  Requests* requests_;           ///< null without a directory of checkpoints
  const RunOptions& options_;
  const std::vector<std::int32_t>& prompt_;
  TextCodec& codec_;
};

/// The number of the optimizer's instances that divides the ranks and is next to the wanted one: below it, or
/// with `keeps` above it.
int instances_over(int ranks, int wanted, bool keeps) {
  if (!keeps) return std::gcd(wanted, ranks);
  int instances = std::min(wanted, ranks);
  while (ranks % instances != 0) ++instances;
  return instances;
}

/// The options for the epoch's ranks. There may be fewer than at first, and then what does not divide them is
/// less, or more, which changes no bit.
RunOptions for_epoch(RunOptions options, const Corpus& corpus, actors::RankWorld& world) {
  const auto ranks = world.world_size();
  add_settings(options.settings, corpus, ranks);
  auto& session = options.trainer.session;
  session.configuration = compared(options.settings);
  options.trainer.settings = kept(options.settings);
  if (world.epoch().value == 1) return options;
  auto& training = session.training;
  const int others = training.tensor_parallel * training.pipeline_parallel * training.expert_parallel;
  training.optimizer_instances = instances_over(std::max(1, ranks.value / std::max(1, others)),
                                                training.optimizer_instances, options.keeps_instances);
  auto& local = session.local;
  if (local.cliques.empty() && !core::make_cliques(ranks, local.jump, local.factor))
    local.cliques = core::spread_cliques(ranks, local.factor);
  return options;
}

/// What a process keeps from one epoch to the next.
struct Lasting {
  actors::ProcessWorld& world;
  const Corpus& corpus;
  Requests* requests;  ///< null without a directory of checkpoints
  const std::vector<std::int32_t>& prompt;
  TextCodec& codec;
  std::optional<std::size_t> device_bytes;
};

/// From joining to the end of training, or of the epoch.
Result<RunEnd> run_epoch(const RunOptions& options, const Lasting& lasting) {
  actors::RankWorld& world = lasting.world;
  auto trainer =
      TRY(DistributedTrainer::create(world, options.trainer, lasting.corpus, lasting.device_bytes));
  bool traced = options.trainer.session.trace && !options.output.empty();
  if (!options.output.empty()) TRY(make_folder(options.output));
  const auto beginning = begin_run(*trainer, world, options);
  if (!beginning && is_about_checkpoints(beginning.error())) {
    world.log(actors::Subsystem::checkpoint).say(actors::LogLevel::error, beginning.error().message);
    return RunEnd::no_checkpoint;
  }
  const auto& [restored, is_own, note] = TRY(beginning);
  std::unique_ptr<Narrator> narrator;
  if (world.rank().value == 0) {
    auto now = [&device = world.device()] { return device.now(); };
    const bool goes_on = is_own || world.epoch().value > 1;
    narrator = TRY(Narrator::create(options, world.world_size().value, goes_on, now));
    TRY(narrator->start(restored ? restored->step.value : 0, goes_on));
    TRY(tell_of_resume(*narrator, restored));
    if (!note.empty()) TRY(narrator->say(trainer->session().next_step().value, "settings", note));
    const auto memory = core::memory_of(actors::RankProgram(trainer->session().plan(), {0}).program());
    TRY(narrator->say(trainer->session().next_step().value, "memory",
                      "the session of rank 0 takes " + core::describe(memory)));
  }
  if (lasting.requests) lasting.requests->begin();
  Run run(*trainer, narrator.get(), lasting.requests, options, lasting.prompt, lasting.codec);
  const auto end = TRY(run.train(restored && world.epoch().value > 1 ? &*restored : nullptr));
  if (traced) {
    auto folder = options.output + "/trace";
    TRY(make_folder(folder));
    TRY(write_trace_part(folder, {world.rank(), trainer->session().take_trace()}));
  }
  // All ranks leave together, so all parts of the trace exist afterwards.
  TRY(trainer->session().leave());
  if (narrator) TRY(narrator->finish(traced));
  TRY(run.last_save());
  return end;
}

}  // namespace

Result<RunEnd> run_distributed(const RunOptions& given) {
  std::unique_ptr<Requests> requests;
  if (!given.world.checkpoint_directory.empty()) requests = std::make_unique<Requests>();
  TextCodec codec = TRY(codec_of(given.origin));
  std::vector<std::int32_t> prompt;
  if (given.sample_bytes > 0)
    prompt = TRY(encode_prompt(given.prompt, given.trainer.model.vocabulary, codec));
  const Corpus corpus = TRY(Corpus::open(files_of(given), codec));
  // A spare waits in create(), ready.
  if (given.world.device == "host") core::disregard(prepare_blas(), "the model says so again");
  auto world_options = given.world;
  world_options.stays = true;
  auto world = TRY(actors::ProcessWorld::create(world_options));
  if (world->rank().value == 0) {
    print_notes(given.origin, codec);
    TRY(set_aside_export(given.export_to.directory, world->environment().epoch));
    TRY(check_export(given.trainer.model, given.export_to));
  }
  const auto info = TRY(gpu_info(world->device_name()));
  const RunOptions options = with_peak(given, info);
  const Lasting lasting{*world, corpus, requests.get(),
                        prompt, codec,  info ? info->memory_bytes : physical_memory_bytes()};
  while (true) {
    auto end = run_epoch(for_epoch(options, corpus, *world), lasting);
    // The launcher may have put another process in the place of a rank that was lost.
    if (end || !world->form_anew(end.error())) return end;
    if (world->rank().value == 0)
      TRY(set_aside_export(given.export_to.directory, world->environment().epoch));
  }
}

}  // namespace troupe::apps::gpt
