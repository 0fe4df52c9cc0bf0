#include "apps/gpt/options/option_table.hpp"

#include <algorithm>
#include <utility>

#include "actors/session/option_table.hpp"
#include "apps/command_line/options.hpp"
#include "apps/gpt/options/pipeline_options.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::flag;
using core::list;
using core::named;
using core::number;
using core::OptionValue;
using core::Result;
using core::text;
using core::unset;
using core::word;

namespace {

using Rows = std::vector<OptionRow>;
using W = ChangeWeight;

const LocalUse kLocal{true};
const LocalUse kRanks{};

LocalUse only(std::vector<std::string_view> values) {
  return {true, std::move(values)};
}

/// The options that the C interface and other programs have too.
class Common {
 public:
  explicit Common(Options& o) : all_(actors::common_options(o.run.world, o.run.trainer.session)) {}

  OptionRow operator()(std::string_view name, LocalUse local, std::optional<W> change = {}) const {
    const auto& option = core::option_named(all_, name);
    return {fmt::format("--{}", name), option.value, std::string(option.help), std::move(local), change};
  }

 private:
  std::vector<core::CommonOption> all_;
};

/// Settings know only whether a path is given.
OptionValue path(std::string& target) {
  auto value = unset(text(target));
  value.shown = [&target] { return std::string(target.empty() ? "none" : "given"); };
  return value;
}

OptionValue schedule(core::ScheduleKind& target) {
  return {.set = [&target](std::string_view given) -> Result<void> {
            TRY(core::check_word(given, {"gpipe", "1f1b", "interleaved", "zero-bubble"}));
            std::string name(given);
            std::replace(name.begin(), name.end(), '-', '_');
            target = TRY(core::schedule_kind_from_name(name));
            return {};
          },
          .shown = [&target] { return flag_name(target); },
          .choices = "gpipe|1f1b|interleaved|zero-bubble"};
}

OptionValue gathered(std::optional<core::DType>& target) {
  return {.set = [&target](std::string_view given) -> Result<void> {
            TRY(core::check_word(given, {"f8_e4m3", "f8_e5m2"}));
            target = TRY(core::dtype_from_name(given));
            return {};
          },
          .shown = [&target] { return std::string(target ? core::name_of(*target) : "none"); },
          .choices = "f8_e4m3|f8_e5m2",
          .has_default = false};
}

Result<void> check_prompt(std::string_view given) {
  if (!given.empty()) return {};
  return core::fail(core::Errc::invalid_argument, "expected a byte or more");
}

Result<void> check_loss_scale(std::string_view given) {
  TRY(loss_scaling_of(given));
  return {};
}

Rows what_is_trained(Options& o) {
  RunOptions& run = o.run;
  return {
      {"--local", flag(o.local),
       "Train with a plain loop in this process, without the runtime; options of the runtime are refused",
       kLocal},
      {"--evaluate-only", flag(o.evaluate_only),
       "With --local, train nothing: print the perplexity of the evaluation text", kLocal},
      {"--print-tokens", flag(o.print_tokens),
       "With --local, train nothing: print the token ids of each line (or document) of --text, in the form "
       "that --text takes",
       kLocal},
      {"--text", unset(text(run.text)),
       "Text file to train on (scripts/fetch_text writes one), or *.jsonl with a document per line: "
       "{\"text\": ...}, {\"prompt\": ..., \"completion\": ...}, or token ids as {\"tokens\": [...]}",
       kLocal},
      {"--evaluation-text,--eval-text", unset(text(run.evaluation_text)),
       "File to evaluate with, in any form of --text, all of which is then trained on; by default the last 5 "
       "% of --text",
       kLocal},
      {"--preset", unset(word(o.preset, {"tiny", "demo", "350m", "760m", "1.5b"})),
       "Model: tiny, demo (the default), 350m, 760m or 1.5b", kLocal},
      {"--model", path(o.model),
       "Start from this Hugging Face model directory (Llama, Mistral, Mixtral, Qwen2, Qwen3) instead of a "
       "preset",
       kLocal, W::none},
      {"--key", list(o.keys),
       "KEY=VALUE: in place of what config.json of --model says, as JSON or a word; repeatable", kLocal},
      {"--ignore", list(o.ignored),
       "A key of config.json that is passed over though its meaning is not known; repeatable", kLocal},
      {"--weights-from", path(o.weights_from),
       "Begin a new run, at step 0, from the weights of this checkpoint (or of the newest in this "
       "directory), without the optimizer's state; the other options say what the model is",
       kLocal, W::none},
      {"--export", path(run.export_to.directory),
       "At the end, write the model to this new directory in the Hugging Face format", kLocal, W::none},
      {"--export-dtype", word(o.export_dtype, {"f32", "bf16", "f16"}),
       "Dtype of the tensors that --export writes: f32, bf16 or f16", kLocal, W::none},
      {"--layers", unset(number(o.layers, {1, 1024})), "Instead of the preset's", kLocal},
      {"--heads", unset(number(o.heads, {1, 1024})), "Instead of the preset's", kLocal},
      {"--width", unset(number(o.width, {1, 65536})), "Instead of the preset's", kLocal},
      {"--feed-forward", unset(number(o.feed_forward, {1, 1 << 18})), "Instead of the preset's", kLocal},
      {"--context", unset(number(o.context, {1, 65536})), "Instead of the preset's; in tokens", kLocal},
      {"--norm", word(o.norm, {"rms", "layer"}), "rms or layer", kLocal},
      {"--activation", word(o.activation, {"swiglu", "gelu"}), "swiglu or gelu", kLocal},
      {"--untied", flag(o.untied), "Give the output layer its own weights instead of the embedding table's",
       kLocal},
      {"--initial-deviation", unset(number(o.initial_deviation, {1e-9, 10})),
       "Standard deviation of the initial weights, instead of the preset's", kLocal},
  };
}

Rows how_it_is_trained(Options& o, const Common& common) {
  RunOptions& run = o.run;
  auto& training = run.trainer.session.training;
  return {
      {"--batch", number(run.trainer.microbatch.batch, {1, 65536}), "Sequences per microbatch", kLocal,
       W::curve},
      {"--lanes", number(training.lanes, {1, 65536}), "Logical data-parallel workers", kLocal, W::curve},
      common("microbatches", kLocal, W::curve),
      {"--steps", number(run.steps, {1, kMostSteps}), "Optimizer steps", kLocal, W::told},
      {"--warmup", number(run.trainer.schedule.warmup.value, {0, kMostSteps}),
       "Steps until the learning rate is at its peak", kLocal, W::curve},
      {"--learning-rate", number(run.trainer.schedule.peak, {0, 1000}), "Peak learning rate", kLocal,
       W::curve},
      {"--floor", number(o.floor, {0, 1}), "Final learning rate, as a fraction of the peak", kLocal,
       W::curve},
      {"--optimizer", word(o.optimizer, {"adamw", "lion", "muon"}),
       "adamw, lion, or muon (for the matrices of the blocks; adamw steps the rest)", only({"adamw"}),
       W::curve},
      common("weight-decay", kLocal, W::curve),
      common("beta2", kLocal, W::curve),
      {"--loss-scale", text(o.loss_scale, check_loss_scale),
       "Factor of the loss before backward: none, a number, or dynamic", only({"none"}), W::curve},
      {"--loss-average", word(o.loss_average, {"tokens", "lanes"}),
       "What a step's loss is the mean of: tokens (the target tokens of all lanes) or lanes (their means)",
       kLocal, W::curve},
      common("clip-norm", kLocal, W::curve),
      {"--seed", number(run.trainer.seed, kAnyNumber<std::uint64_t>), "Seed of weights, data and samples",
       kLocal, W::curve},
      {"--evaluate-every", number(run.evaluate_every, {0, kMostSteps}),
       "Steps between evaluations; 0: only at the end", kLocal, W::none},
      {"--evaluation-batches", number(run.evaluation_batches, {1, 1'000'000}), "Microbatches", kLocal,
       W::none},
      {"--sample-bytes", number(run.sample_bytes, {0, 1'000'000}), "Bytes of text to generate at the end",
       kLocal, W::none},
      {"--prompt", text(run.prompt, check_prompt), "Start of the generated text", kLocal, W::none},
      {"--temperature", number(run.sampling.temperature, {0, 1000}),
       "Sampling temperature; 0: always the likeliest token", kLocal, W::none},
      {"--top-k", number(run.sampling.top_k, {0, 1'000'000}),
       "Sample among this many of the likeliest tokens", kLocal, W::none},
  };
}

Rows mixtures(Options& o, const Common& common) {
  ExpertOptions& experts = o.experts;
  return {
      {"--experts", number(experts.count, {0, 4096}), "Experts that replace the MLP of each layer; 0: none",
       kLocal},
      {"--experts-per-token", number(experts.choices, {1, 4096}), "Experts that each token goes to", kLocal},
      {"--expert-feed-forward", number(experts.feed_forward, {0, 1 << 18}),
       "Hidden elements of an expert; 0: as many as the MLP has", kLocal},
      {"--balance", number(experts.balance, {0, 1000}),
       "Weight of the load-balancing loss; by default 0.01, and 0 with --model", kLocal},
      {"--bias-rate", number(experts.bias_rate, {0, 1}),
       "Balance without that loss: how much a step moves the routers' biases (sigmoid scores); 0: not at all",
       only({"0"})},
      {"--z-loss", number(experts.z_loss, {0, 1000}),
       "Weight of the loss that keeps the routers' logits small", kLocal},
      {"--capacity-factor", number(experts.capacity_factor, {1e-6, 1e6}),
       "Drop choices beyond this multiple of an expert's even share; by default none are dropped", kLocal},
      common("expert-parallel", only({"1"}), W::told),
      common("expert-tensor-parallel", only({"0", "1"}), W::told),
  };
}

Rows stages(Options& o, const Common& common) {
  TrainerOptions& trainer = o.run.trainer;
  return {
      common("pipeline-parallel", only({"1"}), W::told),
      {"--pipeline-schedule", schedule(trainer.pipeline.schedule),
       "gpipe, 1f1b, interleaved (several --pipeline-chunks per stage) or zero-bubble (the weights' half of "
       "backward fills gaps)",
       kRanks, W::none},
      {"--pipeline-chunks", number(trainer.pipeline.chunks, {1, 65536}),
       "Model chunks per stage, for interleaved schedules", kRanks, W::none},
  };
}

Rows ranks(Options& o, const Common& common) {
  TrainerOptions& trainer = o.run.trainer;
  auto& training = trainer.session.training;
  return {
      common("strategy", kRanks, W::told),
      common("numerics", kRanks, W::curve),
      common("wire-dtype", kRanks, W::curve),
      common("average-in-collective", kRanks, W::curve),
      {"--gather-dtype", gathered(trainer.gather_dtype),
       "With --dtype bf16, f8_e4m3 or f8_e5m2: round the matrices of layers to blocks of 32 elements with "
       "one scale (MXFP8), and gather them in this form",
       kRanks, W::curve},
      common("collectives", kRanks, W::none),
      common("register-memory", kRanks, W::none),
      common("device", only({"host"})),
      {"--dtype", unset(word(o.dtype, {"f32", "fp32", "bf16"})),
       "Dtype of parameters and activations: f32, or bf16 on GPUs (the default there)",
       only({"f32", "fp32"})},
      common("large-gradient-factor", kRanks, W::none),
      {"--tf32", flag(trainer.arithmetic.tf32), "Let f32 products on GPUs round their inputs to TF32", kRanks,
       W::curve},
      {"--recompute", flag(trainer.arithmetic.keep, Keep::inputs),
       "Recompute activations: keep only the input of each layer, and compute the rest again in backward",
       kLocal, W::none},
      {"--peak-tera-flops", number(o.peak_tera_flops, {0, 1e9}),
       "Peak of a GPU, for the utilisation figure; 0: derived from its compute capability"},
      {"--no-overlap", flag(training.overlap, false),
       "Do not overlap communication with forward and backward", kRanks, W::none},
      common("bucket-elements", kRanks, W::none),
      common("optimizer-instances", kRanks, W::none),
      {"--keep-instances", flag(o.run.keeps_instances),
       "When ranks are lost, choose the next higher number of instances, not the next lower", kRanks,
       W::none},
      common("gathered-units", kRanks, W::none),
      {"--output", unset(text(o.run.output)),
       "Directory for the record, the report and the trace; a run that resumes goes on with its record"},
      {"--trace", flag(trainer.session.trace), "Record a Perfetto trace in the output folder"},
      {"--trace-steps", number(o.run.trace_steps, {0, kMostSteps}),
       "Steps to trace, from the start or the resume"},
      common("tensor-parallel", only({"1"}), W::told),
      {"--sequence-parallel", flag(trainer.tensor.sequence_parallel),
       "With --tensor-parallel, split norms and the residual stream too, by rows", kRanks, W::none},
      {"--tensor-slices", unset(number(trainer.tensor.slices, {1, 1024})),
       "Compute each layer in this many slices: the same bits on any number of tensor-parallel ranks that "
       "divides it [as many as --tensor-parallel]",
       only({"1"})},
      common("context-parallel", only({"1"}), W::told),
      common("context-pieces", only({"0", "1"})),
  };
}

Rows checkpoints(Options& o, const Common& common) {
  RunOptions& run = o.run;
  return {
      {"--checkpoints", path(run.world.checkpoint_directory),
       "Directory for checkpoints; without it, none are saved", kRanks, W::none},
      {"--save-every", number(run.save_every, {0, kMostSteps}),
       "Steps between checkpoints; 0: only at the end", kRanks, W::told},
      {"--resume", text(run.resume), "auto (the newest complete checkpoint, if any), never, or a path"},
      {"--force-resume", flag(run.force_resume),
       "Go on from a checkpoint even if options differ that change the course of training", kRanks, W::none},
      common("keep-last", kRanks, W::none),
      common("keep-every", kRanks, W::none),
      common("compare-replicas-every", kRanks, W::none),
      {"--staging-mib", number(o.staging_mib, {1, 1 << 20}),
       "Memory for copies that are not on disk yet, in MiB"},
      {"--local-checkpoints", path(run.world.local_checkpoint_directory),
       "Directory on each node, or in memory (/dev/shm/...), for copies of each rank's state", kRanks,
       W::none},
      {"--local-every", number(run.local_every, {0, kMostSteps}), "Steps between local copies; 0: none",
       kRanks, W::none},
      common("replication-factor", kRanks, W::none),
      common("replication-jump", kRanks, W::none),
  };
}

}  // namespace

Result<core::LossScaling> loss_scaling_of(std::string_view text) {
  if (text == "none") return core::LossScaling{};
  if (text == "dynamic") return core::LossScaling{.kind = core::LossScale::dynamic};
  const auto scale = core::parse_number<double>(text, {1e-30, 1e30});
  if (scale) return core::LossScaling{.kind = core::LossScale::fixed, .scale = *scale};
  return core::fail(core::Errc::invalid_argument,
                    "expected none, dynamic or a number from 1e-30 to 1e30, found {}",
                    core::quoted_excerpt(text));
}

std::vector<OptionRow> option_table(Options& options) {
  Rows all = what_is_trained(options);
  const Common common(options);
  for (const auto part : {how_it_is_trained, mixtures, stages, ranks, checkpoints}) {
    for (auto& row : part(options, common)) all.push_back(std::move(row));
  }
  return all;
}

}  // namespace troupe::apps::gpt
