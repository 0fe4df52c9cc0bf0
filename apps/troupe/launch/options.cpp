#include "apps/troupe/launch/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <iostream>
#include <numeric>
#include <string_view>
#include <utility>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

namespace {

void add_membership_options(CLI::App& app, LaunchOptions& options) {
  app.add_option(
      "--nnodes", options.nnodes,
      "Nodes; start this command once on each. MIN:MAX: the job begins with MIN, goes on when nodes "
      "are lost, and takes in those that come. Default: what Slurm, MPI, or Flux say, or 1");
  app.add_option(
      "--nproc-per-node", options.nproc_per_node,
      "Ranks of this node: a number, or auto, gpu, cpu. MIN:MAX: begins with MAX and goes on with fewer when "
      "ranks are lost, without going below MIN");
  add_number(
      app, "--node-rank", options.node_rank, {0, 1 << 20},
      "Index of this node; node 0 is where the endpoint is. Default: by the engine, or in order of arrival");
  app.add_option("--rdzv-backend", options.rdzv_backend, "static or c10d");
  app.add_option("--rdzv-endpoint", options.rdzv_endpoint, "host[:port] of node 0, where the launchers meet");
  app.add_option("--rdzv-id", options.rdzv_id, "Name of the job, the same on all nodes");
  app.add_option(
      "--rdzv-conf", options.rdzv_conf,
      "join_timeout=600 (seconds to wait for nodes), last_call_timeout=30 (for more than MIN, once MIN "
      "are there), keep_alive_interval=1 and keep_alive_max_attempt=5 (a launcher silent for 5 x 1 s "
      "is lost)");
  app.add_flag("--standalone", options.standalone, "One node, with free ports on this host");
  app.add_option("--master-addr", options.master_addr,
                 "Address of node 0; the same as --rdzv-endpoint without a port");
  add_number(app, "--master-port", options.master_port, {1, 65535},
             "Port of rank 0 (one node), or where launchers meet (several)");
  app.add_option("--local-addr", options.local_addr, "Address of this node, for MASTER_ADDR if it is node 0");
  app.add_option("--token-file", options.token_file,
                 "A file with the secret by which launchers of several hosts recognise each other; see "
                 "docs/clusters.md");
  app.add_option(
      "--journal", options.journal,
      "A file in which the launcher of node 0 notes the job, so that it goes on when that launcher is "
      "lost and started again; see docs/clusters.md");
  app.add_option("--role", options.role, "Name in the ROLE_ variables");
}

void add_life_options(CLI::App& app, LaunchOptions& options) {
  constexpr core::Bounds<double> kSeconds{0, 1'000'000};
  add_number(app, "--max-restarts", options.max_restarts, {0, 1'000'000'000},
             "Restarts after a failure, in place or of the whole gang");
  add_number(app, "--spares", options.spares, {0, 1 << 16},
             "Extra processes of this node that stand by without a rank: one takes the place of a rank "
             "that fails, on any node, which costs no restart");
  app.add_option(
         "--recovery", options.recovery,
         "in-place: only the rank that failed is started again where the others can stay, as those of gpt "
         "can; restart: always the whole gang")
      ->check(CLI::IsMember({"in-place", "restart"}));
  add_number(app, "--term-timeout", options.term_timeout_seconds, kSeconds,
             "Seconds between SIGTERM and SIGKILL");
  add_number(app, "--shutdown-timeout", options.term_timeout_seconds, kSeconds,
             "torchrun's name for --term-timeout");
  add_number(
      app, "--restart-backoff", options.restart_backoff_seconds, kSeconds,
      "Seconds to pause before restarting a gang that failed sooner than this without a new step, from the "
      "second such failure in a row; doubles up to 60");
  app.add_option("--signals-to-handle", options.signals_to_handle,
                 "Signals that shut the job down cleanly; SIGUSR1 and SIGUSR2, if not among them, go to the "
                 "ranks that handle them");
}

void add_program_options(CLI::App& app, LaunchOptions& options) {
  app.add_flag("-m,--module", options.module, "The program is a Python module");
  app.add_flag("--no-python", options.no_python, "Execute the program even when it ends in .py");
  app.add_flag("--run-path", options.run_path, "The program is a Python script, whatever its name");
  app.add_option(
      "--log", options.log_levels,
      "How much this launcher and Troupe's ranks log: trace, debug, info (default), warning, error or "
      "off, and levels of subsystems, as in info,transport=debug");
  app.add_flag("--log-json", options.log_json, "They log in JSON, one object per line");
  add_number(
      app, "--log-file-mib", options.log_file_mib, {1, 1 << 20},
      "Each rank also writes rank_N.log in its folder of --log-dir, of at most this many MiB; two older "
      "files are kept");
  app.add_option("--log-dir", options.log_dir, "Where logs, error files and the job's report go");
  app.add_option("-r,--redirects", options.redirects,
                 "To files only: 0 nothing, 1 stdout, 2 stderr, 3 both, or 0:1,1:2 by local rank");
  app.add_option("-t,--tee", options.tee, "To files and to the console; values as for --redirects");
  app.add_option("--local-ranks-filter", options.local_ranks_filter, "Local ranks that reach the console");
  app.add_option("--log-line-prefix-template", options.log_line_prefix_template,
                 "Before each line on the console, with ${role_name}, ${local_rank}, ${rank}, ${hostname}");
  app.add_option("--duplicate-stdout-filters", options.duplicate_stdout_filters,
                 "Lines with one of these words (a,b) also go to filtered_stdout.log in the log directory");
  app.add_option("--duplicate-stderr-filters", options.duplicate_stderr_filters,
                 "The same for stderr and filtered_stderr.log");
  app.add_flag("--virtual-local-rank", options.virtual_local_rank,
               "LOCAL_RANK is 0 everywhere, and each rank sees one GPU");
  app.add_option("--numa-binding", options.numa_binding, "node: each rank on the cores of one NUMA node");
}

void add_ignored_options(CLI::App& app, LaunchOptions::Ignored& ignored) {
  app.add_option("--monitor-interval", ignored.monitor_interval, "Ignored: exits are noticed immediately");
  app.add_option("--start-method", ignored.start_method, "Ignored: programs are executed");
  app.add_option("--logs-specs", ignored.logs_specs, "Ignored");
  app.add_option("--event-log-handler", ignored.event_log_handler, "Ignored");
}

void warn_of_what_has_no_effect(LaunchOptions& options) {
  const std::vector<std::string> known{
      "join_timeout", "last_call_timeout", "close_timeout",       "read_timeout",
      "timeout",      "is_host",           "keep_alive_interval", "keep_alive_max_attempt"};
  if (!options.rdzv_conf.empty()) {
    for (const std::string& part : CLI::detail::split(options.rdzv_conf, ',')) {
      const std::string key = part.substr(0, part.find('='));
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        options.warnings.push_back(fmt::format("--rdzv-conf: {} is not known, and has no effect", key));
      }
    }
  }
  if (!options.numa_binding.empty() && options.numa_binding != "node") {
    options.warnings.push_back(
        fmt::format("--numa-binding {} has no effect; only node is there", options.numa_binding));
  }
}

/// Edit distance, for suggestions.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
}

std::string suggestion(const CLI::App& app, const std::string& flag) {
  std::string best;
  std::size_t least = 1 + flag.size() / 3;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::size_t found = distance(flag, "--" + name);
      if (found < least) {
        least = found;
        best = "--" + name;
      }
    }
  }
  return best.empty() ? "see `troupe launch --help`" : fmt::format("did you mean {}?", best);
}

/// Takes, like argparse, the beginning of a long name for the name if there is only one, and completes it.
Result<const CLI::Option*> option_of(const CLI::App& app, std::string& name) {
  if (const CLI::Option* exact = app.get_option_no_throw(name)) return exact;
  std::vector<std::string> found;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) {
      if (name.size() > 2 && ("--" + known).starts_with(name)) found.push_back("--" + known);
    }
  }
  if (found.empty()) {
    return core::fail(Errc::invalid_argument, "unknown flag {}; {}", core::quoted_excerpt(name),
                      suggestion(app, name));
  }
  if (found.size() > 1) {
    return core::fail(Errc::invalid_argument, "{} may mean {}; write more of it", name,
                      fmt::join(found, ", "));
  }
  name = found.front();
  return app.get_option_no_throw(name);
}

struct Split {
  std::vector<std::string> flags;
  std::vector<std::string> program;
  std::vector<std::string> warnings;
};

/// Ours are the flags before the first word that is neither a flag nor a flag's value; the rest is the
/// program's. Names come back with dashes.
Result<Split> split(const CLI::App& app, std::span<const std::string> arguments) {
  Split result;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;

    const bool is_long = word[1] == '-';
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    std::string name = is_long ? word.substr(0, equals) : word.substr(0, 2);
    if (is_long) std::replace(name.begin(), name.end(), '_', '-');
    const bool has_value = equals != std::string::npos || (!is_long && word.size() > 2);

    if (name.starts_with("--ft-")) {
      result.warnings.push_back(fmt::format("{} has no effect: this version restarts the whole gang", name));
      if (!has_value && i + 1 < arguments.size() && !arguments[i + 1].starts_with("-")) ++i;
      continue;
    }
    if (name == "--print-completion") {
      return core::fail(Errc::unavailable,
                        "--print-completion: there are no completions for shells; leave it "
                        "out");
    }
    const CLI::Option* const option = TRY(option_of(app, name));
    result.flags.push_back(name + (equals == std::string::npos ? "" : word.substr(equals)));
    if (!is_long && has_value) result.flags.push_back(word.substr(word[2] == '=' ? 3 : 2));
    const bool takes_value = option->get_expected_min() > 0;
    if (takes_value && !has_value) {
      if (i + 1 == arguments.size()) {
        return core::fail(Errc::invalid_argument, "{} needs a value; see `troupe launch --help`", name);
      }
      result.flags.push_back(arguments[++i]);
    }
  }
  result.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return result;
}

void take_defaults_from_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option == app.get_help_ptr()) continue;
    std::string name = "PET_" + option->get_lnames().front();
    for (char& letter : name) letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
    option->envname(name);
  }
}

/// What will come from the environment because no flag says it.
std::map<std::string, std::string> taken_from_environment(const CLI::App& app,
                                                          const std::vector<std::string>& flags) {
  std::map<std::string, std::string> taken;
  for (const CLI::Option* option : app.get_options()) {
    const char* const value =
        option->get_envname().empty() ? nullptr : ::getenv(option->get_envname().c_str());
    const bool is_said = std::ranges::any_of(flags, [&](const std::string& flag) {
      const std::string name = flag.substr(0, flag.find('='));
      return name.starts_with('-') && option->check_name(name);
    });
    if (value == nullptr || *value == '\0' || is_said) continue;
    taken["--" + option->get_lnames().front()] = fmt::format("{}={}", option->get_envname(), value);
  }
  return taken;
}

Result<int> parse_number(const std::string& flag, std::string_view text) {
  const auto value = core::parse_number<int>(text, {0, 1 << 20});
  if (!value) return core::fail(Errc::invalid_argument, "{}: {}", flag, value.error().message);
  return *value;
}

}  // namespace

void add_launch_options(CLI::App& app, LaunchOptions& options) {
  app.footer(
      "After the flags: [--] program [arguments...]\n"
      "A rank's exit code 75 (requeue) or 97 (no checkpoint it can use) ends the job, without a "
      "restart.");
  add_membership_options(app, options);
  add_life_options(app, options);
  add_program_options(app, options);
  add_ignored_options(app, options.ignored);
  take_defaults_from_environment(app);
}

Result<std::optional<LaunchOptions>> parse_launch_options(std::span<const std::string> arguments) {
  LaunchOptions options;
  CLI::App app(
      "Runs a program once per rank: torchrun's flags, torchrun's environment. For several nodes, start it "
      "once on "
      "each.",
      "troupe launch");
  take_last_of_repeated(app);
  add_launch_options(app, options);

  Split parts = TRY(split(app, arguments));
  options.from_environment = taken_from_environment(app, parts.flags);
  // CLI11 wants them last first.
  std::reverse(parts.flags.begin(), parts.flags.end());
  try {
    app.parse(std::move(parts.flags));
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return core::fail(Errc::invalid_argument, "{}",
                      with_sources(message_of(app, error), options.from_environment));
  }
  options.program = std::move(parts.program);
  options.warnings = std::move(parts.warnings);
  warn_of_what_has_no_effect(options);
  for (std::string& warning : options.warnings)
    warning = with_sources(std::move(warning), options.from_environment);
  return options;
}

std::string with_sources(std::string message, const std::map<std::string, std::string>& from_environment) {
  std::string sources;
  for (const auto& [flag, assignment] : from_environment) {
    const std::size_t at = message.find(flag);
    const char next = at == std::string::npos ? '-' : (message + ' ')[at + flag.size()];
    // A longer flag may begin with this one.
    if (next == '-' || std::isalnum(static_cast<unsigned char>(next)) != 0) continue;
    sources += fmt::format("{}{} is not on the command line: the environment has {}",
                           sources.empty() ? "" : "; ", flag, assignment);
  }
  return sources.empty() ? message : fmt::format("{} ({})", message, sources);
}

std::vector<std::string> parse_filters(const std::string& text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',' && text.substr(i, 2) != ",,") {
      filters.emplace_back();
    } else {
      filters.back() += text[i];
      if (text[i] == ',') ++i;
    }
  }
  std::erase(filters, "");
  return filters;
}

Result<StreamChoice> parse_stream_choice(const std::string& flag, const std::string& text) {
  const auto parse_bits = [&](std::string_view bits) -> Result<int> {
    if (bits.size() == 1 && bits[0] >= '0' && bits[0] <= '3') return bits[0] - '0';
    return core::fail(Errc::invalid_argument,
                      "{}: expected 0 (nothing), 1 (stdout), 2 (stderr), 3 (both), or a list like 0:1,1:2, "
                      "found {}",
                      flag, core::quoted_excerpt(text));
  };
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    choice.everywhere = TRY(parse_bits(text));
    return choice;
  }
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const int rank = TRY(parse_number(flag, part.substr(0, colon)));
    choice.by_local_rank[rank] = TRY(parse_bits(colon < part.size() ? part.substr(colon + 1) : ""));
  }
  return choice;
}

Result<std::vector<int>> parse_rank_list(const std::string& flag, const std::string& text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    ranks.push_back(TRY(parse_number(flag, part)));
  }
  return ranks;
}

}  // namespace troupe::apps
