#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "actors/world/exit_status.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/gpt/distributed_run.hpp"
#include "apps/gpt/local_trainer.hpp"
#include "apps/gpt/options.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "apps/gpt/sample.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

/// The model to begin from; null where it is a preset.
Result<std::unique_ptr<PretrainedModel>> origin_of(const Options& o) {
  if (o.model.empty()) return std::unique_ptr<PretrainedModel>{};
  if (o.layers + o.heads + o.width + o.feed_forward > 0 || o.untied || o.norm != "rms" ||
      o.activation != "swiglu") {
    return core::fail(core::Errc::invalid_argument,
                      "config.json of {} says what the model is; leave out --layers, --heads, --width, "
                      "--feed-forward, --norm, --activation and --untied",
                      o.model);
  }
  return PretrainedModel::open(o.model, o.context);
}

Result<ExportOptions> export_options(const Options& o, const PretrainedModel* origin) {
  ExportOptions options{.directory = o.export_directory};
  options.dtype = TRY(core::dtype_from_name(o.export_dtype));
  options.origin = origin;
  return options;
}

Result<ModelConfig> model_config(const Options& o, const PretrainedModel* origin) {
  if (origin != nullptr) return origin->config();
  ModelConfig config = TRY(preset(o.preset));
  const auto replace = [](std::size_t& field, std::size_t value) { field = value > 0 ? value : field; };
  replace(config.layers, o.layers);
  replace(config.heads, o.heads);
  replace(config.width, o.width);
  replace(config.feed_forward, o.feed_forward);
  replace(config.context, o.context);
  config.norm = TRY(norm_from_name(o.norm));
  config.activation = TRY(activation_from_name(o.activation));
  config.tied_embeddings = !o.untied;
  if (o.initial_deviation != 0) config.initial_deviation = o.initial_deviation;
  TRY(validate(config));
  return config;
}

Schedule schedule(const Options& o) {
  return {.peak = o.learning_rate,
          .floor = o.learning_rate * o.floor,
          .warmup = core::Step{o.warmup},
          .total = core::Step{o.steps}};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Result<TextCodec> codec_of(const PretrainedModel* origin) {
  if (origin == nullptr) return TextCodec();
  return TextCodec::open(origin->directory(), origin->end_of_text());
}

Result<void> print_perplexity(LocalTrainer& trainer) {
  const auto [loss, value, tokens] = TRY(trainer.perplexity());
  fmt::print("perplexity {:.4f}, loss {:.6f} over {} tokens of the evaluation text\n", value, loss, tokens);
  return {};
}

Result<RunEnd> train_locally(const Options& o) {
  const auto origin = TRY(origin_of(o));
  const ModelConfig config = TRY(model_config(o, origin.get()));
  TextCodec codec = TRY(codec_of(origin.get()));
  const Corpus corpus = TRY(Corpus::open(o.text, config.context, codec));
  auto trainer = TRY(LocalTrainer::create({.model = config,
                                           .microbatch = {o.batch, config.context},
                                           .lanes = o.lanes,
                                           .microbatches = o.microbatches,
                                           .schedule = schedule(o),
                                           .optimizer = o.optimizer,
                                           .clip_norm = o.clip_norm,
                                           .seed = o.seed,
                                           .initial = origin.get()},
                                          corpus));
  fmt::print("{} parameters, {} KiB of activations, {} tokens per step\n", parameter_count(config),
             trainer.model().activation_bytes() >> 10,
             o.batch * config.context * static_cast<std::size_t>(o.lanes * o.microbatches));
  if (o.evaluate_only) {
    TRY(print_perplexity(trainer));
    return RunEnd::finished;
  }
  const auto start = std::chrono::steady_clock::now();
  double tokens = 0;
  for (std::int64_t step = 1; step <= o.steps; ++step) {
    const StepReport report = TRY(trainer.step());
    tokens += static_cast<double>(o.batch * config.context) * o.lanes * o.microbatches;
    const bool evaluates = o.evaluate_every > 0 && step % o.evaluate_every == 0;
    if (!evaluates && step != o.steps) continue;
    const double seconds = seconds_since(start);
    const double evaluation = TRY(trainer.evaluate(o.evaluation_batches));
    fmt::print("step {:5}  loss {:.4f}  evaluation {:.4f}  norm {:.3f}  {:6.0f} tokens/s  {:5.1f} s\n", step,
               report.loss, evaluation, report.gradient_norm, tokens / seconds, seconds_since(start));
    std::fflush(stdout);
  }
  SamplingOptions sampling = o.sampling;
  sampling.seed = o.seed;
  const auto next = [&](Model::Tokens window) {
    return trainer.model().logits(trainer.parameters(), window);
  };
  const auto sample = TRY(sample_text(next, config.context, o.prompt, o.sample_bytes, sampling, codec));
  fmt::print("\n{}{}\n", o.prompt, sample);
  if (o.export_directory.empty()) return RunEnd::finished;
  const auto read = [&](std::size_t parameter, core::ElementRange range, std::span<float> values) {
    std::copy_n(trainer.parameters()[parameter] + range.start, values.size(), values.begin());
    return Result<void>{};
  };
  TRY(export_model(config, read, TRY(export_options(o, origin.get()))));
  fmt::print("exported the model to {}\n", o.export_directory);
  return RunEnd::finished;
}

std::vector<std::pair<std::string, std::string>> configuration(const Options& o, const ModelConfig& model) {
  return {{"model", fmt::format("{} layers, {} heads, width {}, feed forward {}", model.layers, model.heads,
                                model.width, model.feed_forward)},
          {"parameters", std::to_string(parameter_count(model))},
          {"context", std::to_string(model.context)},
          {"lanes", std::to_string(o.lanes)},
          {"sequences per microbatch", std::to_string(o.batch)},
          {"microbatches per lane", std::to_string(o.microbatches)},
          {"device", o.device},
          {"strategy", o.strategy},
          {"numerics", o.numerics},
          {"overlap", o.no_overlap ? "off" : "on"},
          {"collectives", o.collectives},
          {"learning rate", fmt::format("{}", o.learning_rate)},
          {"seed", std::to_string(o.seed)}};
}

Result<RunEnd> train_distributed(const Options& o) {
  if (o.evaluate_only)
    return core::fail(core::Errc::invalid_argument, "--evaluate-only needs --local: one process does it all");
  DistributedRunOptions run;
  const auto origin = TRY(origin_of(o));
  TextCodec codec = TRY(codec_of(origin.get()));
  run.codec = &codec;
  run.trainer.model = TRY(model_config(o, origin.get()));
  run.trainer.initial = origin.get();
  run.export_to = TRY(export_options(o, origin.get()));
  run.trainer.microbatch = {o.batch, run.trainer.model.context};
  run.trainer.schedule = schedule(o);
  run.device = o.device;
  run.peak_flops = o.peak_tera_flops * 1e12;
  const auto dtype = o.dtype.empty() ? (o.device == "host" || o.tf32 ? "f32" : "bf16") : o.dtype.c_str();
  run.trainer.arithmetic = {TRY(core::dtype_from_name(dtype == std::string_view("fp32") ? "f32" : dtype)),
                            o.tf32};
  run.trainer.seed = o.seed;
  auto& training = run.trainer.session.training;
  training.strategy = TRY(core::strategy_from_name(o.strategy));
  training.numerics = TRY(core::numerics_from_name(o.numerics));
  training.lanes = o.lanes;
  training.microbatches = o.microbatches;
  training.overlap = !o.no_overlap;
  if (o.bucket_elements > 0) training.bucket_elements = o.bucket_elements;
  training.optimizer_instances = o.optimizer_instances;
  training.clip_norm = o.clip_norm;
  training.optimizer.beta1 = o.optimizer.beta1;
  training.optimizer.beta2 = o.optimizer.beta2;
  training.optimizer.epsilon = o.optimizer.epsilon;
  training.optimizer.weight_decay = o.optimizer.weight_decay;
  run.trainer.session.trace = o.trace;
  run.text = o.text;
  run.steps = o.steps;
  run.evaluate_every = o.evaluate_every;
  run.evaluation_batches = o.evaluation_batches;
  run.prompt = o.prompt;
  run.sample_bytes = o.sample_bytes;
  run.sampling = o.sampling;
  run.sampling.seed = o.seed;
  run.collectives = o.collectives;
  run.register_memory = o.register_memory;
  run.trace_steps = o.trace_steps;
  run.output = o.output;
  run.configuration = configuration(o, run.trainer.model);
  run.checkpoints = o.checkpoints;
  run.save_every = o.save_every;
  run.resume = o.resume;
  run.local_checkpoints = o.local_checkpoints;
  run.local_every = o.local_every;
  run.trainer.session.local.jump = o.replication_jump;
  run.trainer.session.local.factor = o.replication_factor;
  auto& checkpoint = run.trainer.session.checkpoint;
  checkpoint.retention = o.retention;
  checkpoint.staging_bytes = o.staging_mib << 20;
  checkpoint.chunk_bytes = std::min(checkpoint.chunk_bytes, checkpoint.staging_bytes);
  return run_distributed(run);
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

int run(int argc, char** argv) {
  CLI::App app(
      "Trains a small language model on the bytes of a text: as one rank of a job that `troupe launch` or "
      "torchrun "
      "started, or alone.",
      "gpt");
  app.footer(
      "Exits with 0 at the end, 75 when it was asked to leave and has saved,\n"
      "2 for a command line that cannot be right, 1 for all else.");
  Options options;
  add_options(app, options);
  if (const auto end = parse_command_line(app, argc, argv)) return *end;
  const Result<RunEnd> done = options.local ? train_locally(options) : train_distributed(options);
  if (done) return exit_code_of(*done);
  fmt::print(stderr, "gpt: {}\n", done.error().message);
  return actors::exit_code_of(done.error());
}

}  // namespace
}  // namespace troupe::apps::gpt

int main(int argc, char** argv) {
  return troupe::apps::gpt::run(argc, argv);
}
