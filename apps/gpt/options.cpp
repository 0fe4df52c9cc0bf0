#include "apps/gpt/options.hpp"

#include "apps/command_line/options.hpp"

namespace troupe::apps::gpt {

namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000;

void add_distributed_options(CLI::App& app, Options& o) {
  add_choice(app, "--strategy", o.strategy, {"ddp", "zero1"}, "ddp or zero1")->capture_default_str();
  add_choice(app, "--numerics", o.numerics, {"ordered", "fast"},
             "ordered (same bits for any number of ranks) or fast")
      ->capture_default_str();
  add_choice(app, "--collectives", o.collectives, {"automatic", "shared_memory", "gloo", "nccl"},
             "automatic, shared_memory, gloo or nccl")
      ->capture_default_str();
  app.add_flag("--register-memory", o.register_memory,
               "With nccl, move gradients and parameters without copies of NCCL's own, where it can");
  add_device(app, "--device", o.device,
             "host, cuda (the GPU of the rank's number on its node) or cuda:<index>")
      ->capture_default_str();
  add_choice(app, "--dtype", o.dtype, {"f32", "fp32", "bf16"},
             "Of parameters and activations: f32, or on GPUs bf16 (their default)");
  app.add_flag("--tf32", o.tf32, "On GPUs, f32 products may round their factors to 10 bits");
  add_number(app, "--peak-tera-flops", o.peak_tera_flops, {0, 1e9},
             "What a GPU does at its best, for the utilisation; 0: by its compute capability")
      ->capture_default_str();
  app.add_flag("--no-overlap", o.no_overlap, "Communicate between forward and backward only");
  add_number(app, "--bucket-elements", o.bucket_elements, {0, std::int64_t{1} << 50},
             "A bucket closes with this many; 0: a default")
      ->capture_default_str();
  add_number(app, "--optimizer-instances", o.optimizer_instances, {1, 65536},
             "Replicas of the sharded optimizer")
      ->capture_default_str();
  app.add_option("--output", o.output, "Folder for the record, the report and the trace");
  app.add_flag("--trace", o.trace, "Record a Perfetto trace in the output folder");
  add_number(app, "--trace-steps", o.trace_steps, {0, kMostSteps},
             "Steps to trace, from the start or the resume")
      ->capture_default_str();
}

void add_checkpoint_options(CLI::App& app, Options& o) {
  app.add_option("--checkpoints", o.checkpoints, "Directory of checkpoints; without it none are saved");
  add_number(app, "--save-every", o.save_every, {0, kMostSteps}, "Steps; 0: at the end only")
      ->capture_default_str();
  app.add_option("--resume", o.resume, "auto (the newest whole checkpoint, if any), never, or a path")
      ->capture_default_str();
  add_number(app, "--keep-last", o.retention.keep_last, {0, 1'000'000}, "Checkpoints to keep; 0: all")
      ->capture_default_str();
  add_number(app, "--keep-every", o.retention.keep_every, {0, kMostSteps},
             "Also keep those whose step is a multiple of this")
      ->capture_default_str();
  add_number(app, "--staging-mib", o.staging_mib, {1, 1 << 20}, "Memory for copies that are not on disk yet")
      ->capture_default_str();
  app.add_option("--local-checkpoints", o.local_checkpoints,
                 "Directory on each node, or in memory (/dev/shm/...), for copies of each rank's state");
  add_number(app, "--local-every", o.local_every, {0, kMostSteps}, "Steps between local copies; 0: none")
      ->capture_default_str();
  add_number(app, "--replication-factor", o.replication_factor, {1, 65536},
             "Ranks that keep copies of each other's state")
      ->capture_default_str();
  add_number(app, "--replication-jump", o.replication_jump, {1, 65536},
             "How far apart they are: the ranks of a node")
      ->capture_default_str();
}

void add_own_options(CLI::App& app, Options& o) {
  app.add_flag("--local", o.local, "Train with a plain loop in this process, without the runtime");
  app.add_flag("--evaluate-only", o.evaluate_only,
               "With --local, train nothing: print the perplexity of the evaluation text");
  app.add_option("--text", o.text,
                 "Text file to train on (scripts/fetch_text writes one), or *.jsonl with a document per line")
      ->required();
  add_choice(app, "--preset", o.preset, {"tiny", "demo", "350m", "760m", "1.5b"},
             "Model: tiny, demo, 350m, 760m or 1.5b")
      ->capture_default_str();
  app.add_option(
      "--model", o.model,
      "Begin from this directory of Hugging Face (Llama, Mistral, Qwen2, Qwen3) instead of a preset");
  app.add_option("--export", o.export_directory,
                 "Write the model to a new directory of Hugging Face at the end");
  add_choice(app, "--export-dtype", o.export_dtype, {"f32", "bf16", "f16"},
             "Of the tensors that --export writes: f32, bf16 or f16")
      ->capture_default_str();
  add_number(app, "--layers", o.layers, {1, 1024}, "Instead of the preset's");
  add_number(app, "--heads", o.heads, {1, 1024}, "Instead of the preset's");
  add_number(app, "--width", o.width, {1, 65536}, "Instead of the preset's");
  add_number(app, "--feed-forward", o.feed_forward, {1, 1 << 18}, "Instead of the preset's");
  add_number(app, "--context", o.context, {1, 65536}, "Instead of the preset's; in tokens");
  add_choice(app, "--norm", o.norm, {"rms", "layer"}, "rms or layer")->capture_default_str();
  add_choice(app, "--activation", o.activation, {"swiglu", "gelu"}, "swiglu or gelu")->capture_default_str();
  app.add_flag("--untied", o.untied, "An output layer of its own, instead of the embedding table");
  add_number(app, "--initial-deviation", o.initial_deviation, {1e-9, 10},
             "Of the weights, instead of the preset's");
  add_number(app, "--batch", o.batch, {1, 65536}, "Sequences of a microbatch")->capture_default_str();
  add_number(app, "--lanes", o.lanes, {1, 65536}, "Logical data-parallel workers")->capture_default_str();
  add_number(app, "--microbatches", o.microbatches, {1, 4096}, "Per lane and step")->capture_default_str();
  add_number(app, "--steps", o.steps, {1, kMostSteps}, "Optimizer steps")->capture_default_str();
  add_number(app, "--warmup", o.warmup, {0, kMostSteps}, "Steps to the full learning rate")
      ->capture_default_str();
  add_number(app, "--learning-rate", o.learning_rate, {0, 1000}, "At its peak")->capture_default_str();
  add_number(app, "--floor", o.floor, {0, 1}, "Learning rate at the end, as a share of the peak")
      ->capture_default_str();
  add_number(app, "--weight-decay", o.optimizer.weight_decay, {0, 1000}, "Of matrices")
      ->capture_default_str();
  add_number(app, "--beta2", o.optimizer.beta2, {0, 0.999999}, "Of AdamW")->capture_default_str();
  add_number(app, "--clip-norm", o.clip_norm, {0, 1e30}, "Global gradient norm; 0: no clipping")
      ->capture_default_str();
  add_number(app, "--seed", o.seed, kAnyNumber<std::uint64_t>, "Of weights, data and samples")
      ->capture_default_str();
  add_number(app, "--evaluate-every", o.evaluate_every, {0, kMostSteps}, "Steps; 0: at the end only")
      ->capture_default_str();
  add_number(app, "--evaluation-batches", o.evaluation_batches, {1, 1'000'000}, "Microbatches")
      ->capture_default_str();
  add_number(app, "--sample-bytes", o.sample_bytes, {0, 1'000'000}, "Text to write at the end")
      ->capture_default_str();
  app.add_option("--prompt", o.prompt, "The sample's beginning")
      ->check(
          [](const std::string& text) { return text.empty() ? "expected a byte or more" : std::string(); },
          "")
      ->capture_default_str();
  add_number(app, "--temperature", o.sampling.temperature, {0, 1000}, "0: the likeliest")
      ->capture_default_str();
  add_number(app, "--top-k", o.sampling.top_k, {0, 1'000'000}, "Choose among this many tokens")
      ->capture_default_str();
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  add_own_options(app, options);
  add_distributed_options(app, options);
  add_checkpoint_options(app, options);
}

}  // namespace troupe::apps::gpt
