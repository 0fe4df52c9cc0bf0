#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "actors/world/exit_status.hpp"
#include "apps/gpt/distributed_run.hpp"
#include "apps/gpt/local_trainer.hpp"
#include "apps/gpt/sample.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

struct Options {
  bool local = false;
  std::string text;
  std::string preset = "demo";
  std::size_t layers = 0, heads = 0, width = 0, feed_forward = 0, context = 0;
  std::string norm = "rms", activation = "swiglu";
  bool untied = false;
  double initial_deviation = 0;
  std::size_t batch = 4;
  int lanes = 8, microbatches = 1;
  std::int64_t steps = 1000, warmup = 50;
  double learning_rate = 3e-3, floor = 0.1;
  AdamWOptions optimizer;
  double clip_norm = 1;
  std::uint64_t seed = 1;
  std::int64_t evaluate_every = 100;
  std::size_t evaluation_batches = 16;
  std::size_t sample_bytes = 400;
  std::string prompt = "And ";
  SamplingOptions sampling;
  std::string strategy = "zero1", numerics = "ordered", collectives = "automatic", output;
  std::string device = "host", dtype;
  bool tf32 = false, register_memory = false;
  double peak_tera_flops = 0;
  bool no_overlap = false, trace = false;
  std::int64_t bucket_elements = 0;
  int optimizer_instances = 1;
  std::int64_t trace_steps = 20;
  std::string checkpoints, resume = "auto";
  std::int64_t save_every = 100;
  actors::Retention retention{.keep_last = 3, .keep_every = 0};
  std::uint64_t staging_mib = 256;
  std::string local_checkpoints;
  std::int64_t local_every = 10;
  int replication_jump = 1, replication_factor = 1;
};

void add_distributed_options(CLI::App& app, Options& o) {
  app.add_option("--strategy", o.strategy, "ddp or zero1")->capture_default_str();
  app.add_option("--numerics", o.numerics, "ordered (same bits for any number of ranks) or fast")
      ->capture_default_str();
  app.add_option("--collectives", o.collectives, "automatic, shared_memory, gloo or nccl")
      ->capture_default_str();
  app.add_flag("--register-memory", o.register_memory,
               "With nccl, move gradients and parameters without copies of NCCL's own, where it can");
  app.add_option("--device", o.device,
                 "host, cuda (the GPU of the rank's number on its node) or cuda:<index>")
      ->capture_default_str();
  app.add_option("--dtype", o.dtype, "Of parameters and activations: f32, or on GPUs bf16 (their default)");
  app.add_flag("--tf32", o.tf32, "On GPUs, f32 products may round their factors to 10 bits");
  app.add_option("--peak-tera-flops", o.peak_tera_flops,
                 "What a GPU does at its best, for the utilisation; 0: by its compute capability")
      ->capture_default_str();
  app.add_flag("--no-overlap", o.no_overlap, "Communicate between forward and backward only");
  app.add_option("--bucket-elements", o.bucket_elements, "A bucket closes with this many; 0: a default")
      ->capture_default_str();
  app.add_option("--optimizer-instances", o.optimizer_instances, "Replicas of the sharded optimizer")
      ->capture_default_str();
  app.add_option("--output", o.output, "Folder for the record, the report and the trace");
  app.add_flag("--trace", o.trace, "Record a Perfetto trace in the output folder");
  app.add_option("--trace-steps", o.trace_steps, "Steps to trace, from the beginning")->capture_default_str();
}

void add_checkpoint_options(CLI::App& app, Options& o) {
  app.add_option("--checkpoints", o.checkpoints, "Directory of checkpoints; without it none are saved");
  app.add_option("--save-every", o.save_every, "Steps; 0: at the end only")->capture_default_str();
  app.add_option("--resume", o.resume, "auto (the newest whole checkpoint, if any), never, or a path")
      ->capture_default_str();
  app.add_option("--keep-last", o.retention.keep_last, "Checkpoints to keep; 0: all")->capture_default_str();
  app.add_option("--keep-every", o.retention.keep_every, "Also keep those of every so many steps")
      ->capture_default_str();
  app.add_option("--staging-mib", o.staging_mib, "Memory for copies that are not on disk yet")
      ->capture_default_str();
  app.add_option("--local-checkpoints", o.local_checkpoints,
                 "Directory on each node, or in memory (/dev/shm/...), for copies of each rank's state");
  app.add_option("--local-every", o.local_every, "Steps between local copies")->capture_default_str();
  app.add_option("--replication-factor", o.replication_factor, "Ranks that keep copies of each other's state")
      ->capture_default_str();
  app.add_option("--replication-jump", o.replication_jump, "How far apart they are: the ranks of a node")
      ->capture_default_str();
}

void add_options(CLI::App& app, Options& o) {
  app.add_flag("--local", o.local, "Train with a plain loop in this process, without the runtime");
  app.add_option("--text", o.text, "Text file to train on (scripts/fetch_text writes one)")->required();
  app.add_option("--preset", o.preset, "Model: tiny, demo, 350m, 760m or 1.5b")->capture_default_str();
  app.add_option("--layers", o.layers, "Instead of the preset's");
  app.add_option("--heads", o.heads, "Instead of the preset's");
  app.add_option("--width", o.width, "Instead of the preset's");
  app.add_option("--feed-forward", o.feed_forward, "Instead of the preset's");
  app.add_option("--context", o.context, "Instead of the preset's; in tokens");
  app.add_option("--norm", o.norm, "rms or layer")->capture_default_str();
  app.add_option("--activation", o.activation, "swiglu or gelu")->capture_default_str();
  app.add_flag("--untied", o.untied, "An output layer of its own, instead of the embedding table");
  app.add_option("--initial-deviation", o.initial_deviation, "Of the weights, instead of the preset's");
  app.add_option("--batch", o.batch, "Sequences of a microbatch")->capture_default_str();
  app.add_option("--lanes", o.lanes, "Logical data-parallel workers")->capture_default_str();
  app.add_option("--microbatches", o.microbatches, "Per lane and step")->capture_default_str();
  app.add_option("--steps", o.steps, "Optimizer steps")->capture_default_str();
  app.add_option("--warmup", o.warmup, "Steps to the full learning rate")->capture_default_str();
  app.add_option("--learning-rate", o.learning_rate, "At its peak")->capture_default_str();
  app.add_option("--floor", o.floor, "Learning rate at the end, as a share of the peak")
      ->capture_default_str();
  app.add_option("--weight-decay", o.optimizer.weight_decay, "Of matrices")->capture_default_str();
  app.add_option("--beta2", o.optimizer.beta2, "Of AdamW")->capture_default_str();
  app.add_option("--clip-norm", o.clip_norm, "Global gradient norm; 0: no clipping")->capture_default_str();
  app.add_option("--seed", o.seed, "Of weights, data and samples")->capture_default_str();
  app.add_option("--evaluate-every", o.evaluate_every, "Steps")->capture_default_str();
  app.add_option("--evaluation-batches", o.evaluation_batches, "Microbatches")->capture_default_str();
  app.add_option("--sample-bytes", o.sample_bytes, "Text to write at the end")->capture_default_str();
  app.add_option("--prompt", o.prompt, "The sample's beginning")->capture_default_str();
  app.add_option("--temperature", o.sampling.temperature, "0: the likeliest")->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "Choose among so many tokens")->capture_default_str();
}

Result<ModelConfig> model_config(const Options& o) {
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

Result<RunEnd> train_locally(const Options& o) {
  const ModelConfig config = TRY(model_config(o));
  const Corpus corpus = TRY(Corpus::open(o.text, config.context));
  auto trainer = TRY(LocalTrainer::create({.model = config,
                                           .microbatch = {o.batch, config.context},
                                           .lanes = o.lanes,
                                           .microbatches = o.microbatches,
                                           .schedule = schedule(o),
                                           .optimizer = o.optimizer,
                                           .clip_norm = o.clip_norm,
                                           .seed = o.seed},
                                          corpus));
  fmt::print("{} parameters, {} KiB of activations, {} tokens a step\n", parameter_count(config),
             trainer.model().activation_bytes() >> 10,
             o.batch * config.context * static_cast<std::size_t>(o.lanes * o.microbatches));
  const auto start = std::chrono::steady_clock::now();
  double tokens = 0;
  for (std::int64_t step = 1; step <= o.steps; ++step) {
    const StepReport report = TRY(trainer.step());
    tokens += static_cast<double>(o.batch * config.context) * o.lanes * o.microbatches;
    if (step % o.evaluate_every != 0 && step != o.steps) continue;
    const double seconds = seconds_since(start);
    const double evaluation = TRY(trainer.evaluate(o.evaluation_batches));
    fmt::print("step {:5}  loss {:.4f}  evaluation {:.4f}  norm {:.3f}  {:6.0f} tokens/s  {:5.1f} s\n", step,
               report.loss, evaluation, report.gradient_norm, tokens / seconds, seconds_since(start));
    std::fflush(stdout);
  }
  SamplingOptions sampling = o.sampling;
  sampling.seed = o.seed;
  const auto sample =
      TRY(sample_text(trainer.model(), trainer.parameters(), o.prompt, o.sample_bytes, sampling));
  fmt::print("\n{}{}\n", o.prompt, sample);
  return RunEnd::finished;
}

std::vector<std::pair<std::string, std::string>> configuration(const Options& o, const ModelConfig& model) {
  return {{"model", fmt::format("{} layers, {} heads, width {}, feed forward {}", model.layers, model.heads,
                                model.width, model.feed_forward)},
          {"parameters", std::to_string(parameter_count(model))},
          {"context", std::to_string(model.context)},
          {"lanes", std::to_string(o.lanes)},
          {"sequences a microbatch", std::to_string(o.batch)},
          {"microbatches a lane", std::to_string(o.microbatches)},
          {"device", o.device},
          {"strategy", o.strategy},
          {"numerics", o.numerics},
          {"overlap", o.no_overlap ? "off" : "on"},
          {"collectives", o.collectives},
          {"learning rate", fmt::format("{}", o.learning_rate)},
          {"seed", std::to_string(o.seed)}};
}

Result<RunEnd> train_distributed(const Options& o) {
  DistributedRunOptions run;
  run.trainer.model = TRY(model_config(o));
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
      "started, or alone.");
  Options options;
  add_options(app, options);
  add_distributed_options(app, options);
  add_checkpoint_options(app, options);
  CLI11_PARSE(app, argc, argv);
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
