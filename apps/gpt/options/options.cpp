#include "apps/gpt/options/options.hpp"

#include <algorithm>
#include <utility>

#include "apps/command_line/options.hpp"
#include "apps/command_line/pairs.hpp"
#include "apps/gpt/model/optimizer.hpp"
#include "apps/gpt/options/option_table.hpp"
#include "apps/gpt/options/pipeline_options.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

namespace {

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
  for (const auto& [name, value, help, local, change] : option_table(options)) {
    auto* option = add_value(app, name, value, help);
    if (value.has_default && value.kind == core::OptionValue::Kind::value) option->capture_default_str();
  }
  app.get_option("--text")->required();
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
  TRY(check_expert_ranks(training, trainer.model, options.local));
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
    run.configuration.emplace_back("ranks that share experts", std::to_string(training.expert_parallel));
    if (training.expert_parts() > 1 || training.expert_columns() > 1)
      run.configuration.emplace_back("ranks that share each expert",
                                     std::to_string(training.expert_tensor_parallel));
  }
  run.configuration.emplace_back("loss scale", options.loss_scale);
  for (auto& row : describe(training, trainer.tensor)) run.configuration.push_back(std::move(row));
  describe_pipeline(trainer, run.configuration);
  return std::move(options.run);
}

}  // namespace troupe::apps::gpt
