#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "actors/session/session.hpp"
#include "apps/gpt/local_trainer.hpp"
#include "apps/gpt/sample.hpp"

namespace troupe::apps::gpt {

/// The trainer's command line.
struct Options {
  bool local = false;
  bool evaluate_only = false;
  std::string text;
  std::string preset = "demo";
  std::string model, export_directory;  ///< directories of Hugging Face, to begin from and to write
  std::string export_dtype = "f32";
  std::size_t layers = 0, heads = 0, width = 0, feed_forward = 0, context = 0;  ///< 0: the preset's
  std::string norm = "rms", activation = "swiglu";
  bool untied = false;
  double initial_deviation = 0;  ///< 0: the preset's
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
  core::Retention retention{.keep_last = 3, .keep_every = 0};
  std::uint64_t staging_mib = 256;
  std::string local_checkpoints;
  std::int64_t local_every = 10;
  int replication_jump = 1, replication_factor = 1;
};

/// Makes the app fill `options`, which outlive it. Every number has bounds.
void add_options(CLI::App& app, Options& options);

}  // namespace troupe::apps::gpt
