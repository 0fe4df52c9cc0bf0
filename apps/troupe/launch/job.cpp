#include "apps/troupe/launch/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "actors/world/endpoint.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/exit_status.hpp"
#include "actors/world/transport/authentication.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "apps/troupe/launch/ports.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "posix/entropy.hpp"
#include "posix/host_memory.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;

namespace {

/// Less than any real trainer needs; only an absurd number of ranks fails on it.
constexpr std::uint64_t kLeastBytesPerRank = std::uint64_t{64} << 20;

constexpr core::Bounds<int> kCount{1, std::numeric_limits<int>::max()};

Result<int> count_ranks(const std::string& text) {
  if (text == "cpu") return usable_cores();
  if (text == "xpu") {
    return core::fail(
        Errc::unavailable,
        "--nproc-per-node xpu: Troupe trains on the host and on NVIDIA's GPUs; give a number, or "
        "cpu or gpu");
  }
  const int gpus = actors::visible_gpus(actors::process_variables());
  if (text == "auto") return gpus > 0 ? gpus : usable_cores();
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    return core::fail(Errc::unavailable,
                      "--nproc-per-node gpu: this machine shows no GPU; give a number, or cpu");
  }
  const auto count = core::parse_number<int>(text, kCount);
  if (!count) {
    return core::fail(Errc::invalid_argument,
                      "--nproc-per-node: expected a number from 1, or auto, gpu, cpu; found {}",
                      core::quoted_excerpt(text));
  }
  return *count;
}

Result<void> check_memory(const Job& job) {
  const int ranks = job.ranks + job.options.spares;
  const auto memory = posix::memory_facts();
  const std::uint64_t needed = static_cast<std::uint64_t>(ranks) * kLeastBytesPerRank;
  if (memory.available_bytes == 0 || needed <= memory.available_bytes) return {};
  return core::fail(
      Errc::out_of_memory,
      "--nproc-per-node {}{}: {} processes need at least {} MiB (64 MiB each), but only {} MiB are "
      "available here{}; start at most {}",
      job.ranks, job.options.spares > 0 ? fmt::format(" --spares {}", job.options.spares) : "", ranks,
      needed >> 20, memory.available_bytes >> 20,
      memory.cgroup_limit_bytes ? " within the cgroup's limit" : "",
      std::max<std::uint64_t>(1, memory.available_bytes / kLeastBytesPerRank));
}

/// "4" or "2:4".
Result<void> resolve_ranks(Job& job) {
  const std::string& text = job.options.nproc_per_node;
  const std::size_t colon = text.find(':');
  job.ranks = TRY(count_ranks(text.substr(colon == std::string::npos ? 0 : colon + 1)));
  job.fewest_ranks = colon == std::string::npos ? job.ranks : TRY(count_ranks(text.substr(0, colon)));
  if (job.fewest_ranks > job.ranks) {
    return core::fail(Errc::invalid_argument,
                      "--nproc-per-node {}: expected MIN:MAX, and {} is more than {}; write {}:{}", text,
                      job.fewest_ranks, job.ranks, job.ranks, job.fewest_ranks);
  }
  if (job.fewest_ranks == job.ranks) return {};
  if (job.options.recovery == "in-place") return {};
  return core::fail(
      Errc::invalid_argument,
      "--nproc-per-node {} and --recovery {} exclude each other: fewer ranks go on only if they "
      "stay; leave one out",
      text, job.options.recovery);
}

Result<void> check_spares(const Job& job) {
  if (job.options.spares == 0 || job.options.recovery == "in-place") return {};
  return core::fail(
      Errc::invalid_argument,
      "--spares and --recovery {} exclude each other: a spare helps ranks that stay; leave one out",
      job.options.recovery);
}

template <class T>
Result<T> of_flag(const std::string& flag, Result<T> parsed) {
  if (parsed) return parsed;
  return core::fail(parsed.error().code, "{}: {}", flag, parsed.error().message);
}

/// Where rank 0 listens, and the flag that says so.
Result<std::string> choose_master(Job& job) {
  const LaunchOptions& options = job.options;
  if (options.standalone) {
    job.master_addr = "127.0.0.1";
    return std::string("--standalone");
  }
  const bool is_static = options.rdzv_backend == "static";
  const int master_port = options.master_port.value_or(29500);
  job.master_port = is_static ? master_port : 0;
  if (!options.rdzv_endpoint.empty()) {
    const std::string flag = "--rdzv-endpoint";
    auto endpoint = TRY(of_flag(flag, actors::parse_endpoint(options.rdzv_endpoint)));
    job.master_addr = std::move(endpoint.host);
    if (is_static) job.master_port = endpoint.port.value_or(static_cast<std::uint16_t>(master_port));
    return flag;
  }
  const std::string flag = options.local_addr.empty() ? "--master-addr" : "--local-addr";
  std::string chosen = options.local_addr.empty() ? options.master_addr : options.local_addr;
  if (chosen.empty()) chosen = "127.0.0.1";
  job.master_addr = TRY(of_flag(flag, actors::parse_host(chosen)));
  return flag;
}

Result<void> resolve_rendezvous(Job& job) {
  const LaunchOptions& options = job.options;
  if (options.rdzv_backend.starts_with("etcd")) {
    return core::fail(Errc::unavailable,
                      "--rdzv-backend {}: Troupe needs no etcd; leave the flag out, or use static or c10d",
                      options.rdzv_backend);
  }
  if (options.rdzv_backend != "static" && options.rdzv_backend != "c10d") {
    return core::fail(Errc::invalid_argument, "--rdzv-backend: expected static or c10d, found \"{}\"",
                      options.rdzv_backend);
  }
  if (job.meeting.nodes > 1) {
    if (!options.local_addr.empty())
      job.master_addr = TRY(of_flag("--local-addr", actors::parse_host(options.local_addr)));
    return {};
  }
  const std::string flag = TRY(choose_master(job));
  if (job.master_port == 0) return check_own_address(job.master_addr, flag);
  TRY(ReservedPort::of(job.master_addr, job.master_port, flag));
  return {};
}

Result<void> resolve_program(Job& job) {
  const std::vector<std::string>& words = job.options.program;
  if (words.empty()) {
    return core::fail(
        Errc::invalid_argument,
        "no program given; write: troupe launch --nproc-per-node 4 -- ./trainer [arguments...]");
  }
  if (job.options.module && job.options.no_python) {
    return core::fail(Errc::invalid_argument, "-m and --no-python exclude each other; leave one out");
  }
  const bool script = job.options.run_path || words[0].ends_with(".py");
  if (job.options.no_python || (!job.options.module && !script)) {
    job.program = TRY(find_program(words[0]));
    job.arguments = words;
    return {};
  }
  const char* chosen = ::getenv("PYTHON_EXEC");
  job.arguments = {chosen ? chosen : "python3", "-u"};
  if (job.options.module) job.arguments.push_back("-m");
  job.arguments.insert(job.arguments.end(), words.begin(), words.end());
  auto python = find_program(job.arguments[0]);
  if (!python) {
    return core::fail(Errc::not_found, "{}; {} runs with Python: install it, or name it in PYTHON_EXEC",
                      python.error().message, words[0]);
  }
  job.program = std::move(*python);
  std::error_code ignored;
  if (!job.options.module && !fs::exists(words[0], ignored)) {
    return core::fail(Errc::not_found, "there is no script {}; look at the path (here: {})", words[0],
                      fs::current_path(ignored).string());
  }
  return {};
}

Result<void> resolve_streams(Job& job) {
  job.redirects = TRY(parse_stream_choice("--redirects", job.options.redirects));
  job.tee = TRY(parse_stream_choice("--tee", job.options.tee));
  job.stdout_filters = parse_filters(job.options.duplicate_stdout_filters);
  job.stderr_filters = parse_filters(job.options.duplicate_stderr_filters);
  const auto filter = TRY(parse_rank_list("--local-ranks-filter", job.options.local_ranks_filter));
  for (int rank : filter) {
    if (rank >= job.ranks) {
      return core::fail(Errc::invalid_argument,
                        "--local-ranks-filter: there is no local rank {}, only 0 to {}", rank, job.ranks - 1);
    }
  }
  job.shown_ranks.insert(filter.begin(), filter.end());
  for (int rank = 0; filter.empty() && rank < job.ranks; ++rank) job.shown_ranks.insert(rank);
  return {};
}

Result<void> resolve_signals(Job& job) {
  const std::array<int, 6> known{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  std::string text = job.options.signals_to_handle;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string name = text.substr(0, comma);
    text.erase(0, comma + 1);
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](int signal) { return actors::signal_name(signal) == name; });
    if (found == known.end()) {
      return core::fail(
          Errc::invalid_argument,
          "--signals-to-handle: expected some of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, found "
          "{}",
          core::quoted_excerpt(name));
    }
    job.stop_signals.insert(*found);
  }
  return {};
}

/// <log-dir>/<run id>_<random>, or a temporary directory when nobody asked for logs. Nodes may share the file
/// system.
Result<void> make_directory(Job& job) {
  std::error_code error;
  const bool wanted =
      job.redirects.any() || job.tee.any() || !job.stdout_filters.empty() || !job.stderr_filters.empty();
  job.directory_is_temporary = job.options.log_dir.empty() && !wanted;
  const std::string suffix = job.place.node == 0 ? "" : fmt::format("_node_{}", job.place.node);
  const fs::path parent =
      job.options.log_dir.empty() ? fs::temp_directory_path(error) : fs::path(job.options.log_dir);
  const char* prefix = job.options.log_dir.empty() ? "troupe-" : "";
  // What is temporary goes with the launcher that made it.
  const std::string again =
      job.directory_is_temporary && job.place.resumed > 0 ? fmt::format("_again_{}", job.place.resumed) : "";
  job.directory = fs::absolute(parent / (prefix + job.id + suffix + again), error);
  fs::create_directories(job.directory, error);
  if (error) {
    return core::fail(Errc::io, "cannot make {}: {}; choose another --log-dir", job.directory.string(),
                      error.message());
  }
  return {};
}

/// The flags precede the environment, which is the ranks' too. What the launcher says of the job is not left
/// out with what ranks say, unless its own level asks for that.
Result<void> resolve_log(Job& job) {
  const auto& options = job.options;
  const auto variables = [&](const char* name) -> std::optional<std::string> {
    const std::string_view asked(name);
    if (asked == "TROUPE_LOG" && !options.log_levels.empty()) return options.log_levels;
    if (asked == "TROUPE_LOG_JSON" && options.log_json) return "1";
    if (asked == "TROUPE_LOG_FILE_MIB" && options.log_file_mib) return std::to_string(*options.log_file_mib);
    if (asked == "TROUPE_LOG_DIR") return options.log_dir;
    return actors::process_variables()(name);
  };
  auto log = actors::log_options(variables);
  if (!log && !options.log_levels.empty() && log.error().message.starts_with("TROUPE_LOG: "))
    return core::fail(log.error().code, "--log: {}", log.error().message.substr(12));
  job.log = TRY(std::move(log));
  const auto own = actors::name_of(actors::Subsystem::launch);
  if (variables("TROUPE_LOG").value_or("").find(fmt::format("{}=", own)) == std::string::npos)
    job.log.levels.set(actors::Subsystem::launch, actors::LogLevel::info);
  return {};
}

std::string safe_name(std::string text) {
  for (char& letter : text) {
    const bool plain = ::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_';
    if (!plain) letter = '_';
  }
  return text.substr(0, 64);
}

}  // namespace

Result<Job> prepare_job(LaunchOptions options) {
  Job job;
  job.options = std::move(options);
  job.meeting = TRY(find_meeting(job.options, actors::process_variables()));
  TRY(resolve_ranks(job));
  TRY(check_spares(job));
  TRY(check_memory(job));
  TRY(resolve_program(job));
  TRY(resolve_streams(job));
  TRY(resolve_signals(job));
  TRY(resolve_rendezvous(job));
  TRY(resolve_log(job));
  job.run_id = job.options.rdzv_id;
  if (job.meeting.nodes > 1) return job;
  if (!job.options.journal.empty()) {
    return core::fail(Errc::invalid_argument,
                      "--journal {} is for jobs of several nodes (--nnodes): the ranks of one node end with "
                      "its launcher, and "
                      "a job that is begun anew resumes from its newest checkpoint; leave it out",
                      job.options.journal);
  }
  job.place.world = job.ranks;
  const bool can_mend = job.options.max_restarts > 0 || job.fewest_ranks < job.ranks;
  job.keeps_processes =
      job.options.spares > 0 || (job.options.recovery == "in-place" && can_mend && job.ranks > 1);
  job.token = actors::to_hex(TRY(actors::random_token()));
  TRY(name_job(job, unique_id(job)));
  return job;
}

std::string unique_id(const Job& job) {
  return fmt::format("{}_{}", safe_name(job.run_id == "none" ? "job" : job.run_id), posix::unique_name());
}

Result<void> name_job(Job& job, std::string id) {
  job.id = std::move(id);
  return make_directory(job);
}

std::string launcher_name(const Job& job) {
  const std::string again = job.place.resumed == 0 ? "" : fmt::format(".{}", job.place.resumed);
  return fmt::format("{}.{}{}", job.id, job.place.node, again);
}

std::string mark_of(const Job& job) {
  return "TROUPE_LAUNCHER_ID=" + launcher_name(job);
}

Result<std::string> find_program(const std::string& name) {
  std::error_code ignored;
  std::vector<fs::path> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.emplace_back(name);
  } else {
    const char* variable = ::getenv("PATH");
    std::string path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
    while (!path.empty()) {
      const std::size_t colon = std::min(path.find(':'), path.size());
      candidates.push_back(fs::path(path.substr(0, colon)) / name);
      path.erase(0, colon + 1);
    }
  }
  for (const fs::path& candidate : candidates) {
    if (fs::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate.string();
  }
  for (const fs::path& candidate : candidates) {
    if (fs::is_directory(candidate, ignored)) {
      return core::fail(Errc::invalid_argument, "{} is a directory, not a program", candidate.string());
    }
    if (fs::exists(candidate, ignored)) {
      return core::fail(Errc::invalid_argument, "{} is not executable; run: chmod +x {}", candidate.string(),
                        candidate.string());
    }
  }
  const bool here = name.find('/') == std::string::npos && fs::exists(name, ignored);
  return core::fail(Errc::not_found, "there is no program {}{}", name,
                    here ? fmt::format(" in PATH; did you mean ./{}?", name)
                         : (candidates.size() == 1 ? "; look at the path" : " in PATH; give its path"));
}

}  // namespace troupe::apps
