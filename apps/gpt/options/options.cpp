#include "apps/gpt/options/options.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "apps/command_line/options.hpp"
#include "apps/command_line/pairs.hpp"
#include "apps/gpt/model/optimizer.hpp"
#include "apps/gpt/options/pipeline_options.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

/// An option whose value is one of these names of a Choice.
template <class Choice>
CLI::Option* add_named(CLI::App& app, const std::string& name, Choice& target,
                       Result<Choice> (*from_name)(std::string_view), const std::vector<std::string>& names,
                       const std::string& help) {
  const auto take = [&target, from_name](const CLI::results_t& texts) {
    target = from_name(texts.front()).value();
    return true;
  };
  const auto shown = [&target] { return std::string(name_of(target)); };
  return app.add_option(name, take, help, false, shown)
      ->type_name("TEXT")
      ->check(apps::detail::one_of(names), fmt::format("{}", fmt::join(names, "|")));
}

Result<core::LossScaling> loss_scaling_of(const std::string& text) {
  if (text == "none") return core::LossScaling{};
  if (text == "dynamic") return core::LossScaling{.kind = core::LossScale::dynamic};
  const auto scale = core::parse_number<double>(text, {1e-30, 1e30});
  if (scale) return core::LossScaling{.kind = core::LossScale::fixed, .scale = *scale};
  return core::fail(core::Errc::invalid_argument,
                    "expected none, dynamic or a number from 1e-30 to 1e30, found {}",
                    core::quoted_excerpt(text));
}

void add_distributed_options(CLI::App& app, Options& options) {
  RunOptions& o = options.run;
  auto& training = o.trainer.session.training;
  add_named(app, "--strategy", training.strategy, core::strategy_from_name,
            {"ddp", "zero1", "zero2", "zero3", "hsdp", "hfsdp"},
            "What is sharded: ddp nothing, zero1 the optimizer, zero2 gradients too, zero3 parameters too; "
            "hsdp and hfsdp within each of --optimizer-instances")
      ->capture_default_str();
  add_named(app, "--numerics", training.numerics, core::numerics_from_name, {"ordered", "fast"},
            "ordered (same bits for any number of ranks) or fast")
      ->capture_default_str();
  add_named(app, "--wire-dtype", training.wire_dtype, core::dtype_from_name, {"f32", "bf16"},
            "Dtype in which gradients are sent; they are summed in f32")
      ->capture_default_str();
  app.add_flag("--average-in-collective", training.average_in_collective,
               "Fast numerics: collectives divide by their members what they add, not ranks before them");
  const auto gather = [&o](const CLI::results_t& texts) {
    o.trainer.gather_dtype = core::dtype_from_name(texts.front()).value();
    return true;
  };
  app.add_option(
         "--gather-dtype", gather,
         "With --dtype bf16, f8_e4m3 or f8_e5m2: round the matrices of layers to blocks of 32 elements "
         "with one scale (MXFP8), and gather them in this form")
      ->type_name("TEXT")
      ->check(apps::detail::one_of({"f8_e4m3", "f8_e5m2"}), "f8_e4m3|f8_e5m2");
  add_choice(app, "--collectives", o.world.collectives, {"automatic", "shared_memory", "tcp", "nccl"},
             "automatic, shared_memory, tcp or nccl")
      ->capture_default_str();
  app.add_flag(
      "--register-memory", o.world.register_memory,
      "With nccl, register gradients and parameters, so that NCCL moves them without copies where it can");
  add_device(app, "--device", o.world.device,
             "host, cuda (the GPU with the rank's local number) or cuda:<index>")
      ->capture_default_str();
  add_choice(app, "--dtype", options.dtype, {"f32", "fp32", "bf16"},
             "Dtype of parameters and activations: f32, or bf16 on GPUs (the default there)");
  add_number(app, "--large-gradient-factor", training.large_gradient_factor, {0, 1e30},
             "Warn of gradients whose norm is above so many times the largest of the first 100 steps; 0: no")
      ->capture_default_str();
  app.add_flag("--tf32", o.trainer.arithmetic.tf32, "Let f32 products on GPUs round their inputs to TF32");
  app.add_flag_callback(
      "--recompute", [&o] { o.trainer.arithmetic.keep = Keep::inputs; },
      "Recompute activations: keep only the input of each layer, and compute the rest again in backward");
  add_number(app, "--peak-tera-flops", options.peak_tera_flops, {0, 1e9},
             "Peak of a GPU, for the utilisation figure; 0: derived from its compute capability")
      ->capture_default_str();
  app.add_flag_callback(
      "--no-overlap", [&training] { training.overlap = false; },
      "Do not overlap communication with forward and backward");
  add_number(app, "--bucket-elements", training.bucket_elements, {1, std::int64_t{1} << 50},
             "Elements after which a bucket closes, instead of the default");
  add_number(app, "--optimizer-instances", training.optimizer_instances, {1, 65536},
             "Replicas of the sharded optimizer; for hsdp and hfsdp, the size of the outer axis")
      ->capture_default_str();
  add_number(app, "--gathered-units", training.gathered_units, {1, 1024},
             "Layers whose full parameters may exist at once where parameters are sharded")
      ->capture_default_str();
  app.add_option(
      "--output", o.output,
      "Directory for the record, the report and the trace; a run that resumes goes on with its record");
  app.add_flag("--trace", o.trainer.session.trace, "Record a Perfetto trace in the output folder");
  add_number(app, "--trace-steps", o.trace_steps, {0, kMostSteps},
             "Steps to trace, from the start or the resume")
      ->capture_default_str();
}

void add_checkpoint_options(CLI::App& app, Options& options) {
  RunOptions& o = options.run;
  auto& retention = o.trainer.session.checkpoint.retention;
  auto& local = o.trainer.session.local;
  app.add_option("--checkpoints", o.world.checkpoint_directory,
                 "Directory for checkpoints; without it, none are saved");
  add_number(app, "--save-every", o.save_every, {0, kMostSteps},
             "Steps between checkpoints; 0: only at the end")
      ->capture_default_str();
  app.add_option("--resume", o.resume, "auto (the newest complete checkpoint, if any), never, or a path")
      ->capture_default_str();
  app.add_flag("--force-resume", o.force_resume,
               "Go on from a checkpoint although options differ that change the course of training");
  add_number(app, "--keep-last", retention.keep_last, {0, 1'000'000}, "Checkpoints to keep; 0: all")
      ->capture_default_str();
  add_number(app, "--keep-every", retention.keep_every, {0, kMostSteps},
             "Also keep those whose step is a multiple of this")
      ->capture_default_str();
  add_number(app, "--compare-replicas-every", o.trainer.session.compare_replicas_every, {0, kMostSteps},
             "Steps between comparisons of the parameters that several ranks keep, which are made before "
             "saves too: a "
             "rank that computes wrongly is found and what came of it is not saved; 0: none")
      ->capture_default_str();
  add_number(app, "--staging-mib", options.staging_mib, {1, 1 << 20},
             "Memory for copies that are not on disk yet, in MiB")
      ->capture_default_str();
  app.add_option("--local-checkpoints", o.world.local_checkpoint_directory,
                 "Directory on each node, or in memory (/dev/shm/...), for copies of each rank's state");
  add_number(app, "--local-every", o.local_every, {0, kMostSteps}, "Steps between local copies; 0: none")
      ->capture_default_str();
  add_number(app, "--replication-factor", local.factor, {1, 65536},
             "Ranks that keep copies of each other's state")
      ->capture_default_str();
  add_number(app, "--replication-jump", local.jump, {1, 65536},
             "Distance in ranks between these, for instance the ranks of a node")
      ->capture_default_str();
}

void add_model_options(CLI::App& app, Options& o) {
  add_choice(app, "--preset", o.preset, {"tiny", "demo", "350m", "760m", "1.5b"},
             "Model: tiny, demo (the default), 350m, 760m or 1.5b");
  app.add_option(
      "--model", o.model,
      "Start from this Hugging Face model directory (Llama, Mistral, Mixtral, Qwen2, Qwen3) instead "
      "of a preset");
  app.add_option("--key", o.keys,
                 "KEY=VALUE: in place of what config.json of --model says, as JSON or a word; repeatable")
      ->allow_extra_args(false);
  app.add_option("--ignore", o.ignored,
                 "A key of config.json that is passed over though its meaning is not known; repeatable")
      ->allow_extra_args(false);
  app.add_option(
      "--weights-from", o.weights_from,
      "Begin a run of its own, at step 0, from the weights of this checkpoint (or of the newest in "
      "this directory), without the optimizer's state; the other options say what the model is");
  app.add_option("--export", o.run.export_to.directory,
                 "At the end, write the model to this new directory in the Hugging Face format");
  add_choice(app, "--export-dtype", o.export_dtype, {"f32", "bf16", "f16"},
             "Dtype of the tensors that --export writes: f32, bf16 or f16")
      ->capture_default_str();
  add_number(app, "--layers", o.layers, {1, 1024}, "Instead of the preset's");
  add_number(app, "--heads", o.heads, {1, 1024}, "Instead of the preset's");
  add_number(app, "--width", o.width, {1, 65536}, "Instead of the preset's");
  add_number(app, "--feed-forward", o.feed_forward, {1, 1 << 18}, "Instead of the preset's");
  add_number(app, "--context", o.context, {1, 65536}, "Instead of the preset's; in tokens");
  add_choice(app, "--norm", o.norm, {"rms", "layer"}, "rms or layer")->capture_default_str();
  add_choice(app, "--activation", o.activation, {"swiglu", "gelu"}, "swiglu or gelu")->capture_default_str();
  app.add_flag("--untied", o.untied,
               "Give the output layer its own weights instead of the embedding table's");
  add_number(app, "--initial-deviation", o.initial_deviation, {1e-9, 10},
             "Standard deviation of the initial weights, instead of the preset's");
}

void add_text_options(CLI::App& app, Options& options) {
  app.add_flag("--evaluate-only", options.evaluate_only,
               "With --local, train nothing: print the perplexity of the evaluation text");
  app.add_flag(
      "--print-tokens", options.print_tokens,
      "With --local, train nothing: print the token ids of each line (or document) of --text, in the "
      "form that --text takes");
  app.add_option(
         "--text", options.run.text,
         "Text file to train on (scripts/fetch_text writes one), or *.jsonl with a document per line: "
         "{\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, or token ids as {\"tokens\": [...]}")
      ->required();
  app.add_option(
      "--evaluation-text,--eval-text", options.run.evaluation_text,
      "File to evaluate with, in any form of --text, all of which is then trained on; by default the "
      "last 5 % of --text");
}

void add_own_options(CLI::App& app, Options& options) {
  app.add_flag(
      "--local", options.local,
      "Train with a plain loop in this process, without the runtime; options of the runtime are refused");
  add_text_options(app, options);
  add_model_options(app, options);
  RunOptions& o = options.run;
  auto& training = o.trainer.session.training;
  add_number(app, "--batch", o.trainer.microbatch.batch, {1, 65536}, "Sequences per microbatch")
      ->capture_default_str();
  add_number(app, "--lanes", training.lanes, {1, 65536}, "Logical data-parallel workers")
      ->capture_default_str();
  add_number(app, "--microbatches", training.microbatches, {1, 4096}, "Microbatches per lane and step")
      ->capture_default_str();
  add_number(app, "--steps", o.steps, {1, kMostSteps}, "Optimizer steps")->capture_default_str();
  add_number(app, "--warmup", o.trainer.schedule.warmup.value, {0, kMostSteps},
             "Steps until the learning rate is at its peak")
      ->capture_default_str();
  add_number(app, "--learning-rate", o.trainer.schedule.peak, {0, 1000}, "Peak learning rate")
      ->capture_default_str();
  add_number(app, "--floor", options.floor, {0, 1}, "Final learning rate, as a fraction of the peak")
      ->capture_default_str();
  add_choice(app, "--optimizer", options.optimizer, {"adamw", "lion", "muon"},
             "adamw, lion, or muon (for the matrices of the blocks; adamw steps the rest)")
      ->capture_default_str();
  add_number(app, "--weight-decay", training.optimizer.weight_decay, {0, 1000}, "Weight decay of matrices")
      ->capture_default_str();
  add_number(app, "--beta2", training.optimizer.beta2, {0, 0.999999}, "AdamW's second beta")
      ->capture_default_str();
  app.add_option("--loss-scale", options.loss_scale,
                 "Factor of the loss before backward: none, a number, or dynamic")
      ->check(
          [](const std::string& text) {
            const auto scaling = loss_scaling_of(text);
            return scaling ? std::string() : scaling.error().message;
          },
          "")
      ->capture_default_str();
  add_choice(
      app, "--loss-average", options.loss_average, {"tokens", "lanes"},
      "Of a step: tokens (over the target tokens of all lanes), or lanes (the mean of the lanes' means)")
      ->capture_default_str();
  add_number(app, "--clip-norm", training.clip_norm, {0, 1e30},
             "Clip gradients to this global norm; 0: no clipping")
      ->capture_default_str();
  add_number(app, "--seed", o.trainer.seed, kAnyNumber<std::uint64_t>, "Seed of weights, data and samples")
      ->capture_default_str();
  add_number(app, "--evaluate-every", o.evaluate_every, {0, kMostSteps},
             "Steps between evaluations; 0: only at the end")
      ->capture_default_str();
  add_number(app, "--evaluation-batches", o.evaluation_batches, {1, 1'000'000}, "Microbatches")
      ->capture_default_str();
  add_number(app, "--sample-bytes", o.sample_bytes, {0, 1'000'000}, "Bytes of text to generate at the end")
      ->capture_default_str();
  app.add_option("--prompt", o.prompt, "Start of the generated text")
      ->check(
          [](const std::string& text) { return text.empty() ? "expected a byte or more" : std::string(); },
          "")
      ->capture_default_str();
  add_number(app, "--temperature", o.sampling.temperature, {0, 1000},
             "Sampling temperature; 0: always the likeliest token")
      ->capture_default_str();
  add_number(app, "--top-k", o.sampling.top_k, {0, 1'000'000},
             "Sample among this many of the likeliest tokens")
      ->capture_default_str();
}

Result<ModelConfig> model_config(const Options& o, const PretrainedModel* origin) {
  if (origin != nullptr) {
    ModelConfig config = origin->config();
    TRY(apply_expert_options(o.experts, true, config));
    return config;
  }
  ModelConfig config = TRY(preset(o.preset.empty() ? "demo" : o.preset));
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
  TRY(apply_expert_options(o.experts, false, config));
  TRY(validate(config));
  return config;
}

Result<core::DType> dtype_of(const Options& o) {
  if (!o.dtype.empty()) return core::dtype_from_name(o.dtype == "fp32" ? "f32" : o.dtype);
  const bool is_wide = o.run.world.device == "host" || o.run.trainer.arithmetic.tf32;
  return is_wide ? core::DType::f32 : core::DType::bf16;
}

std::vector<std::pair<std::string, std::string>> configuration(const RunOptions& run) {
  const auto& [model, arithmetic, microbatch, session, loss_average, schedule, seed, initial, tensor,
               gathered, files, pipeline, settings] = run.trainer;
  const auto& training = session.training;
  return {{"model", fmt::format("{} layers, {} heads, width {}, feed forward {}", model.layers, model.heads,
                                model.width, model.feed_forward)},
          {"parameters", std::to_string(parameter_count(model))},
          {"context", std::to_string(model.context)},
          {"lanes", std::to_string(training.lanes)},
          {"sequences per microbatch", std::to_string(microbatch.batch)},
          {"microbatches per lane", std::to_string(training.microbatches)},
          {"device", run.world.device},
          {"strategy", std::string(core::name_of(training.strategy))},
          {"numerics", std::string(core::name_of(training.numerics))},
          {"wire", std::string(core::name_of(training.wire_dtype))},
          {"gathered", std::string(core::name_of(gathered.value_or(arithmetic.dtype)))},
          {"overlap", training.overlap ? "on" : "off"},
          {"collectives", run.world.collectives},
          {"activations", arithmetic.keep == Keep::inputs ? "computed again in backward" : "kept"},
          {"loss averaged over", std::string(name_of(loss_average))},
          {"learning rate", fmt::format("{}", schedule.peak)},
          {"seed", std::to_string(seed)}};
}

}  // namespace

Options::Options() {
  auto& training = run.trainer.session.training;
  training.lanes = 8;
  training.clip_norm = 1;
  training.optimizer.beta2 = 0.95;
  training.optimizer.weight_decay = 0.1;
  run.trainer.microbatch.batch = 4;
  run.trainer.session.checkpoint.retention.keep_last = 3;
  run.steps = 1000;
  run.prompt = "And ";
  run.sample_bytes = 400;
  run.trace_steps = 20;
  run.save_every = 100;
  run.local_every = 10;
}

void add_options(CLI::App& app, Options& options) {
  add_own_options(app, options);
  add_expert_options(app, options.experts);
  add_pipeline_options(app, options.run.trainer);
  add_distributed_options(app, options);
  add_tensor_options(app, options.run.trainer.session.training, options.run.trainer.tensor);
  add_checkpoint_options(app, options);
  app.parse_complete_callback([&app, &options] {
    options.given.clear();
    for (const CLI::Option* option : app.get_options()) {
      if (option->count() > 0) options.given.push_back({option->get_name(), option->results().front()});
    }
  });
}

Result<std::unique_ptr<PretrainedModel>> origin_of(const Options& o) {
  if (o.model.empty()) {
    if (o.keys.empty() && o.ignored.empty()) return std::unique_ptr<PretrainedModel>{};
    return core::fail(core::Errc::invalid_argument,
                      "--key and --ignore are about the config.json of --model, which is not given");
  }
  if (!o.preset.empty() || o.layers + o.heads + o.width + o.feed_forward > 0 || o.untied || o.norm != "rms" ||
      o.activation != "swiglu") {
    return core::fail(core::Errc::invalid_argument,
                      "config.json of {} says what the model is; leave out --preset, --layers, --heads, "
                      "--width, --feed-forward, --norm, --activation and --untied",
                      o.model);
  }
  ReadingOptions reading;
  reading.keys = TRY(pairs_of("--key", o.keys));
  reading.ignored = {o.ignored.begin(), o.ignored.end()};
  return PretrainedModel::open(o.model, o.context, reading);
}

Result<RunOptions> run_options(Options options, const PretrainedModel* origin) {
  RunOptions& run = options.run;
  TrainerOptions& trainer = run.trainer;
  run.origin = origin;
  run.export_to.origin = origin;
  run.export_to.dtype = TRY(core::dtype_from_name(options.export_dtype));
  trainer.initial = origin;
  trainer.model = TRY(model_config(options, origin));
  if (!options.weights_from.empty()) {
    if (run.resume != "auto" && run.resume != "never")
      return core::fail(
          core::Errc::invalid_argument,
          "--weights-from begins a run, and --resume {} goes on with one; leave one of the two out",
          run.resume);
    run.weights = TRY(CheckpointWeights::open(options.weights_from, trainer.model));
    trainer.initial = run.weights.get();
  }
  trainer.files = model_files(trainer.model, run.export_to);
  trainer.microbatch.length = trainer.model.context;
  trainer.arithmetic.dtype = TRY(dtype_of(options));
  if (trainer.gather_dtype && (options.local || trainer.arithmetic.dtype != core::DType::bf16)) {
    return core::fail(core::Errc::invalid_argument,
                      "--gather-dtype {} is for ranks that train bf16 parameters, found {}; leave it out, or "
                      "give --device cuda --dtype bf16",
                      core::name_of(*trainer.gather_dtype),
                      options.local ? "--local" : core::name_of(trainer.arithmetic.dtype));
  }
  trainer.schedule.floor = trainer.schedule.peak * options.floor;
  trainer.schedule.total = core::Step{run.steps};
  auto& checkpoint = trainer.session.checkpoint;
  checkpoint.staging_bytes = options.staging_mib << 20;
  checkpoint.chunk_bytes = std::min(checkpoint.chunk_bytes, checkpoint.staging_bytes);
  if ((options.evaluate_only || options.print_tokens) && !options.local)
    return core::fail(core::Errc::invalid_argument, "{} needs --local: one process does it all",
                      options.evaluate_only ? "--evaluate-only" : "--print-tokens");
  auto& training = trainer.session.training;
  training.expert_parallel = TRY(expert_parallel_of(options.experts, trainer.model, options.local));
  training.expert_tensor_parallel = options.experts.tensor_parallel;
  TRY(check_tensor_options(training, trainer.tensor, options.local));
  TRY(check_pipeline_options(trainer, options.local));
  if (options.local) TRY(check_local_options(options.given, options.evaluate_only));
  run.settings = settings_of(options, run);
  TRY(choose_optimizer(training, options.optimizer, training.optimizer));
  training.loss_scaling = TRY(loss_scaling_of(options.loss_scale));
  trainer.loss_average = options.loss_average == "lanes" ? LossAverage::lanes : LossAverage::tokens;
  run.peak_flops = options.peak_tera_flops * 1e12;
  run.sampling.seed = trainer.seed;
  run.configuration = configuration(run);
  run.configuration.emplace_back("optimizer", options.optimizer);
  if (run.weights) run.configuration.emplace_back("weights from", run.weights->path());
  if (const auto& experts = trainer.model.experts; experts.count > 0) {
    run.configuration.emplace_back("experts",
                                   fmt::format("{} of {} per token", experts.choices, experts.count));
    run.configuration.emplace_back("ranks that experts are distributed over",
                                   std::to_string(training.expert_parallel));
    if (training.expert_parts() > 1 || training.expert_columns() > 1)
      run.configuration.emplace_back("ranks that each expert is cut over",
                                     std::to_string(training.expert_tensor_parallel));
  }
  run.configuration.emplace_back("loss scale", options.loss_scale);
  for (auto& row : describe(training, trainer.tensor)) run.configuration.push_back(std::move(row));
  describe_pipeline(trainer, run.configuration);
  return std::move(options.run);
}

}  // namespace troupe::apps::gpt
