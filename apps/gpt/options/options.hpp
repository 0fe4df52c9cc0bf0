#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line/app.hpp"
#include "apps/gpt/options/expert_options.hpp"
#include "apps/gpt/options/local_options.hpp"
#include "apps/gpt/options/run_options.hpp"

namespace troupe::apps::gpt {

/// The trainer's command line: a run, and options that become part of it once everything is known.
struct Options {
  Options();

  bool local = false;
  bool evaluate_only = false;
  bool print_tokens = false;
  std::string preset;                      ///< empty: demo, or the model below
  std::string model;                       ///< a Hugging Face directory to begin from
  std::vector<std::string> keys, ignored;  ///< KEY=VALUE and KEY of its config.json
  std::string weights_from;  ///< a checkpoint whose weights, and nothing else, a run begins from
  std::string export_dtype = "f32";
  std::size_t layers = 0, heads = 0, width = 0, feed_forward = 0, context = 0;  ///< 0: the preset's
  std::string norm = "rms", activation = "swiglu";
  bool untied = false;
  double initial_deviation = 0;  ///< 0: the preset's
  double floor = 0.1;            ///< of the learning rate, as a fraction of its peak
  std::string dtype;             ///< empty: depends on the device
  double peak_tera_flops = 0;
  std::string optimizer = "adamw";
  std::string loss_scale = "none";
  std::string loss_average = "tokens";
  std::uint64_t staging_mib = 256;
  ExpertOptions experts;
  std::vector<GivenOption> given;  ///< those on the command line
  RunOptions run;
};

/// Makes the app fill `options`, which must outlive it. Every number has bounds.
void add_options(CLI::App& app, Options& options);

/// The model to begin from; null for a preset. Errc::invalid_argument for options that the model's own
/// config.json determines.
core::Result<std::unique_ptr<PretrainedModel>> origin_of(const Options& options);

/// The run, with everything that follows from the options. `origin` is that of the options, and must outlive
/// the run. Errc::invalid_argument for an impossible model.
core::Result<RunOptions> run_options(Options options, const PretrainedModel* origin);

}  // namespace troupe::apps::gpt
