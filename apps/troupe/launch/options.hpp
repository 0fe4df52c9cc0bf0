#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/app.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// What is done with a rank's stdout (bit 0) and stderr (bit 1), torchrun's -r and -t.
struct StreamChoice {
  int everywhere = 0;
  std::map<int, int> by_local_rank;

  bool out(int local_rank) const { return (value(local_rank) & 1) != 0; }
  bool err(int local_rank) const { return (value(local_rank) & 2) != 0; }
  bool any() const { return everywhere != 0 || !by_local_rank.empty(); }

 private:
  int value(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? everywhere : found->second;
  }
};

/// The command line of `troupe launch`: torchrun's flags. Values are as given; plan.hpp says what they mean
/// on this machine.
struct LaunchOptions {
  std::string nnodes;  ///< empty: one, or what the engine that started the launchers says
  std::string nproc_per_node = "1";
  std::optional<int> node_rank;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";
  std::string rdzv_conf;
  bool standalone = false;
  std::string master_addr;
  std::optional<int> master_port;
  std::string token_file;
  std::string journal;
  std::string local_addr;
  std::string role = "default";

  int max_restarts = 0;
  int spares = 0;
  std::string recovery = "in-place";
  double term_timeout_seconds = 15;
  double restart_backoff_seconds = 1;
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

  bool module = false;
  bool no_python = false;
  bool run_path = false;

  std::string log_levels;  ///< empty: what TROUPE_LOG says
  bool log_json = false;
  std::optional<int> log_file_mib;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter;
  std::string log_line_prefix_template;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  bool virtual_local_rank = false;
  std::string numa_binding;

  /// Accepted, so that a torchrun line works, and without effect: what they ask for is always so, or not
  /// ours.
  struct Ignored {
    std::string monitor_interval, start_method, logs_specs, event_log_handler;
  } ignored;

  std::vector<std::string> program;   ///< and its arguments
  std::vector<std::string> warnings;  ///< flags that are accepted and mean nothing here
  /// What was taken from the environment: by flag, the assignment ("PET_NNODES=2").
  std::map<std::string, std::string> from_environment;
};

/// The flags, without the program that follows them. `options` outlives the app.
void add_launch_options(CLI::App& app, LaunchOptions& options);

/// Reads what follows `troupe launch`. Dashes and underscores in flags are the same; PET_<NAME> in the
/// environment is the default of --name. Nothing when help was asked for and printed. Errc::invalid_argument
/// says which flag and what to write instead.
core::Result<std::optional<LaunchOptions>> parse_launch_options(std::span<const std::string> arguments);

/// The message, and for each flag in it that nobody wrote where its value comes from.
std::string with_sources(std::string message, const std::map<std::string, std::string>& from_environment);

/// "apple,orange" -> {"apple", "orange"}; two commas stand for one that separates nothing.
std::vector<std::string> parse_filters(const std::string& text);

/// "0", "3", or "0:1,1:2" for each local rank. `flag` is for the message.
core::Result<StreamChoice> parse_stream_choice(const std::string& flag, const std::string& text);
/// "0,2" -> {0, 2}; empty for an empty text.
core::Result<std::vector<int>> parse_rank_list(const std::string& flag, const std::string& text);

}  // namespace troupe::apps
