#include "apps/gpt/run/command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/exit_status.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/command_line/say.hpp"
#include "apps/gpt/options/options.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "apps/gpt/run/distributed_run.hpp"
#include "apps/gpt/run/local_trainer.hpp"
#include "apps/gpt/text/sample.hpp"
#include "apps/gpt/text/token_lines.hpp"
#include "core/errors.hpp"
#include "core/utf8.hpp"
#include "posix/standard_streams.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

template <class... Values>
void print(fmt::format_string<Values...> text, Values&&... values) {
  posix::tell(stdout, fmt::format(text, std::forward<Values>(values)...));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<void> print_perplexity(LocalTrainer& trainer) {
  const auto [loss, value, tokens] = TRY(trainer.perplexity());
  print("perplexity {:.4f}, loss {:.6f} over {} tokens of the evaluation text\n", value, loss, tokens);
  return {};
}

Result<void> export_trained(LocalTrainer& trainer, const ExportOptions& to) {
  if (to.directory.empty()) return {};
  const auto read = [&](std::size_t parameter, core::ElementRange range, std::span<float> values) {
    const auto* whole = reinterpret_cast<const float*>(trainer.parameters()[parameter]);
    std::copy_n(whole + range.start, values.size(), values.begin());
    return Result<void>{};
  };
  TRY(export_model(trainer.config(), read, to));
  print("exported the model to {}\n", to.directory);
  return {};
}

Result<RunEnd> train_locally(const RunOptions& run, bool only_evaluates) {
  const ModelConfig& config = run.trainer.model;
  const auto& training = run.trainer.session.training;
  TRY(check_export(config, run.export_to));
  TextCodec codec = TRY(codec_of(run.origin));
  print_notes(run.origin, codec);
  std::vector<std::int32_t> prompt;
  if (run.sample_bytes > 0) prompt = TRY(encode_prompt(run.prompt, config.vocabulary, codec));
  const Corpus corpus = TRY(Corpus::open(files_of(run), codec));
  auto trainer = TRY(LocalTrainer::create(run.trainer, corpus));
  const auto microbatches = static_cast<std::size_t>(training.lanes * training.microbatches);
  const std::size_t tokens_per_step = run.trainer.microbatch.rows() * microbatches;
  print("{} parameters, {} KiB of activations, {} tokens per step\n", parameter_count(config),
        memory_need(config, run.trainer.microbatch, {.keep = run.trainer.arithmetic.keep},
                    gpu::DeviceKind::host)
                .activations >>
            10,
        tokens_per_step);
  if (only_evaluates) {
    TRY(print_perplexity(trainer));
    return RunEnd::finished;
  }
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t step = 1; step <= run.steps; ++step) {
    const StepReport report = TRY(trainer.step());
    const bool evaluates = run.evaluate_every > 0 && step % run.evaluate_every == 0;
    if (!evaluates && step != run.steps) continue;
    const double rate =
        static_cast<double>(tokens_per_step) * static_cast<double>(step) / seconds_since(start);
    const auto evaluation = TRY(trainer.evaluate(run.evaluation_batches));
    print("step {:5}  loss {}  evaluation {}  norm {:.3f}  {:6.0f} tokens/s  {:5.1f} s\n", step,
          report.targets > 0 ? fmt::format("{:.4f}", report.loss) : "none: no target token",
          evaluation ? fmt::format("{:.4f}", *evaluation) : "none: no target token", report.gradient_norm,
          rate, seconds_since(start));
    std::fflush(stdout);
  }
  // What was trained is on disk before anything else can fail.
  TRY(export_trained(trainer, run.export_to));
  if (run.sample_bytes == 0) return RunEnd::finished;
  const auto next = [&](TokenSpan window) { return trainer.logits(window); };
  const auto sample =
      TRY(sample_text(next, config.context, std::move(prompt), run.sample_bytes, run.sampling, codec));
  print("\n{}\n", core::printable_of(run.prompt + sample));
  return RunEnd::finished;
}

Result<RunEnd> train(Options options) {
  const auto origin = TRY(origin_of(options));
  const bool is_local = options.local, only_evaluates = options.evaluate_only;
  const bool only_prints = options.print_tokens;
  const RunOptions run = TRY(run_options(std::move(options), origin.get()));
  if (only_prints) {
    TextCodec codec = TRY(codec_of(run.origin));
    TRY(print_tokens(run.text, codec, run.trainer.model.vocabulary, stdout));
    return RunEnd::finished;
  }
  return is_local ? train_locally(run, only_evaluates) : run_distributed(run);
}

int exit_code_of(RunEnd end) {
  switch (end) {
    case RunEnd::finished:
      return 0;
    case RunEnd::preempted:
      return actors::kExitTemporaryFailure;
    case RunEnd::no_checkpoint:
      return actors::kExitNoCheckpoint;
  }
  return 1;
}

int train_as_told(const std::string& program, int argc, char** argv) {
  CLI::App app(
      "Trains a language model on a text or on documents in JSONL: as one rank of a job that `troupe launch` "
      "or torchrun started, or alone. Tokens are bytes, or what the tokenizer.json of --model makes of them.",
      program);
  app.footer(
      "Exits with 0 at the end, 75 when it was asked to leave and has saved,\n"
      "96 when another rank failed first, 97 when there is no checkpoint it can use\n"
      "or the directory has those of another run, 2 for a command line that cannot be right,\n"
      "1 for anything else, such as a last save that failed.");
  take_last_of_repeated(app);
  Options options;
  add_options(app, options);
  if (const auto end = parse_command_line(app, argc, argv)) return *end;
  const Result<RunEnd> done = train(std::move(options));
  if (done) return exit_code_of(*done);
  say_error(program, done.error().message);
  return actors::exit_code_of(done.error());
}

}  // namespace

int run_command(int argc, char** argv) {
  // By the name it was started with: troupe-gpt, or gpt in the build tree.
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "troupe-gpt";
  return run_program(program.c_str(), 1, [&] { return train_as_told(program, argc, argv); });
}

}  // namespace troupe::apps::gpt
