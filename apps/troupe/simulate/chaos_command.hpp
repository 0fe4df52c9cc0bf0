#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace troupe::apps {

/// What `troupe simulate` is given with --chaos or --replay.
struct ChaosCommandOptions {
  bool chaos = false;
  std::string replay;
  std::string write;
  std::string plant = "none";
  bool shrink = false;
  bool tell = false;
  int nodes = 3;
  int spares = 2;
  int faults = 6;
  // Shared with jobs of one epoch.
  int ranks = 3;
  std::uint64_t seed = 0;
  int seeds = 1;
  bool json = false;

  bool is_wanted() const { return chaos || !replay.empty(); }
};

void add_chaos_options(CLI::App& command, ChaosCommandOptions& options);
/// The exit code: kUsageError, after a sentence, if something is given that needs --chaos or --replay and
/// neither is.
int refuse_chaos_options(const ChaosCommandOptions& options);
/// The exit code: 1 if an invariant is violated, 2 for a file that cannot be read or written.
int run_chaos_command(const ChaosCommandOptions& options);

}  // namespace troupe::apps
