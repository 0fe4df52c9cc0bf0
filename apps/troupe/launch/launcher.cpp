#include "apps/troupe/launch/launcher.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "actors/launch/node_agent_shell.hpp"
#include "actors/world/job_guard.hpp"
#include "actors/world/loop_clock.hpp"
#include "actors/world/loop_signals.hpp"
#include "actors/world/process/posix.hpp"
#include "apps/troupe/launch/environment.hpp"
#include "apps/troupe/launch/input.hpp"
#include "apps/troupe/launch/ports.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "apps/troupe/launch/report.hpp"
#include "apps/troupe/launch/terminal.hpp"
#include "core/errors.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using actors::Ending;
using actors::ExitStatus;
using actors::OutputStream;
using core::Result;

namespace {

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

actors::NodeAgentConfig agent_config(const Job& job) {
  actors::NodeAgentConfig config;
  config.ranks = job.ranks;
  config.max_restarts = job.options.max_restarts;
  for (const int signal : job.stop_signals) config.forwarded_signals.erase(signal);
  config.term_timeout = from_seconds(job.options.term_timeout_seconds);
  config.first_backoff = from_seconds(job.options.restart_backoff_seconds);
  return config;
}

/// Contiguous ranks share a NUMA node; empty when binding is not asked for.
std::vector<int> cpus_of(const Job& job, int rank) {
  if (job.options.numa_binding != "node") return {};
  const auto nodes = numa_nodes();
  if (nodes.size() < 2) return {};
  return nodes[static_cast<std::size_t>(rank) * nodes.size() / static_cast<std::size_t>(job.ranks)];
}

/// The job as its NodeAgent sees it: what each rank is started with, and where what it says goes.
class LaunchedGang final : public actors::Gang {
 public:
  LaunchedGang(const Job& job, asio::io_context& loop, const actors::Clock& clock)
      : job_(job),
        loop_(loop),
        clock_(clock),
        terminal_(loop),
        input_(loop),
        environment_(own_environment()) {}

  void announce() {
    terminal_.say(fmt::format("job {}: {} rank{} of {}{}", job_.id, job_.ranks, job_.ranks == 1 ? "" : "s",
                              job_.options.program.front(),
                              job_.directory_is_temporary ? "" : "; logs in " + job_.directory.string()));
    if (job_.ranks > 1 && !::getenv("OMP_NUM_THREADS")) {
      terminal_.say("OMP_NUM_THREADS is set to 1 for each rank; set it yourself for more");
    }
    for (const std::string& warning : job_.options.warnings) terminal_.say("warning: " + warning);
  }

  void stopped_by(int signal) {
    terminal_.say(fmt::format("received {}; stopping the ranks", actors::signal_name(signal)));
  }

  /// At the end: the report, and what the terminal has not taken yet.
  int conclude(const actors::NodeAgentMachine& agent) {
    if (exit_code_ != 0) {
      terminal_.say(fmt::format("job {} ends with exit code {}: {}", job_.id, exit_code_, agent.verdict()));
    }
    if (!job_.directory_is_temporary) {
      std::ofstream(job_.directory / "job_report.json")
          << to_json(job_, {exit_code_, agent.verdict(), agent.restarts(), report_});
    }
    terminal_.drain();
    return exit_code_;
  }

  Result<void> begin(int generation) override {
    if (generation > 0) {
      terminal_.say(fmt::format("restart {} of {}", generation, job_.options.max_restarts));
    }
    report_ = GenerationReport{};
    report_.generation = generation;
    report_.started = clock_.now();
    report_.oom_before = oom_kills();
    workers_.clear();
    workers_.resize(static_cast<std::size_t>(job_.ranks));
    ports_.clear();
    ports_.push_back(job_.master_port == 0
                         ? TRY(ReservedPort::any())
                         : TRY(ReservedPort::of(job_.master_addr, job_.master_port, "--master-addr")));
    ports_.push_back(TRY(ReservedPort::any()));
    generation_ = {generation, ports_[0].number(), ports_[1].number(), posix::unique_name()};
    return {};
  }

  Result<actors::ProcessSpec> prepare(int rank) override {
    const fs::path directory = rank_directory(job_, generation_.number, rank);
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) return core::fail(core::Errc::io, "cannot make {}: {}", directory.string(), error.message());
    worker(rank).log = std::make_unique<RankLog>(job_, generation_.number, rank, terminal_, clock_);
    return actors::ProcessSpec{job_.program, job_.arguments,
                               rank_environment(job_, generation_, rank, environment_), cpus_of(job_, rank),
                               rank == 0 ? input_.next() : -1};
  }

  void started(int rank, std::int64_t pid) override {
    worker(rank).pid = pid;
    if (rank == 0) input_.is_handed_over();
  }

  void withheld(int rank, int signal) override {
    terminal_.say(
        fmt::format("rank {} does not handle {}, or not yet: it was not sent, since it would end it", rank,
                    actors::signal_name(signal)));
  }

  void not_started(int rank, const core::Error& error) override {
    terminal_.say(fmt::format("rank {} could not be started: {}", rank, error.message));
  }

  void output(int rank, OutputStream stream, std::string_view bytes) override {
    worker(rank).log->output(stream, bytes);
  }

  void closed(int rank, OutputStream stream) override { worker(rank).log->finish(stream); }

  std::optional<std::int64_t> committed_step() override {
    std::ifstream file(progress_file(job_));
    std::int64_t step = 0;
    return file >> step ? std::optional(step) : std::nullopt;
  }

  void failed(int rank, ExitStatus status) override {
    const std::string failure =
        status.code == actors::kExitFenced
            ? fmt::format("rank {} ended because another rank did ({})", rank, to_string(status))
            : fmt::format("rank {} failed: {}", rank, to_string(status));
    std::ofstream(failure_file(job_, generation_.number)) << failure;
    terminal_.say(failure + (job_.ranks > 1 ? "; stopping the others" : ""));
  }

  void ended(const actors::EndGeneration& end, int cleared) override {
    if (cleared > 0) terminal_.say(fmt::format("killed {} processes the ranks left behind", cleared));
    report_.oom_after = oom_kills();
    for (Worker& worker : workers_) {
      if (!worker.log) continue;
      for (OutputStream stream : {OutputStream::out, OutputStream::err}) worker.log->finish(stream);
    }
    complete_report(end);
    for (const std::string& line : describe(report_)) terminal_.say(line);
  }

  void finished(int exit_code) override {
    exit_code_ = exit_code;
    loop_.stop();
  }

 private:
  struct Worker {
    std::unique_ptr<RankLog> log;
    std::int64_t pid = 0;
  };

  Worker& worker(int rank) { return workers_[static_cast<std::size_t>(rank)]; }

  void complete_report(const actors::EndGeneration& end) {
    report_.cause = end.cause;
    for (const Ending& ending : end.endings) {
      const Worker& ended = worker(ending.rank);
      RankReport rank{ending, ended.pid, {}, {}};
      const auto& lines = ended.log->last_error_lines().lines();
      rank.last_error_lines.assign(lines.begin(), lines.end());
      const fs::path file = error_file(job_, ending.generation, ending.rank);
      rank.error_message = read_error_file(file);
      if (!ending.status.success() && !fs::exists(file)) write_error_file(file, rank);
      report_.ranks.push_back(std::move(rank));
    }
  }

  const Job& job_;
  asio::io_context& loop_;
  const actors::Clock& clock_;
  Terminal terminal_;
  Input input_;
  std::vector<ReservedPort> ports_;  ///< of the generation
  std::vector<std::string> environment_;
  Generation generation_;
  std::vector<Worker> workers_;
  GenerationReport report_;
  int exit_code_ = 1;
};

Result<int> run_in_loop(const Job& job) {
  const actors::JobGuard guard =
      TRY(actors::JobGuard::start({job.id, job.directory_is_temporary ? job.directory : fs::path()}));
  ::signal(SIGPIPE, SIG_IGN);
  asio::io_context loop{1};
  actors::LoopClock clock(loop);
  actors::PosixProcesses processes(loop);
  LaunchedGang gang(job, loop, clock);
  actors::NodeAgentShell agent(agent_config(job), job.id, clock, processes, gang);
  std::set<int> signals = job.stop_signals;
  signals.insert({SIGUSR1, SIGUSR2});

  gang.announce();
  const actors::LoopSignals listening(loop, signals, [&](int signal) {
    if (job.stop_signals.contains(signal)) gang.stopped_by(signal);
    agent.signalled(signal);
  });
  agent.start();
  loop.run();
  return gang.conclude(agent.machine());
}

}  // namespace

Result<int> run_job(const Job& job) {
  // Asio reports by exceptions that descriptors are used up.
  try {
    return run_in_loop(job);
  } catch (const std::system_error& error) {
    return core::fail(core::Errc::io,
                      "cannot watch the ranks: {}; see the limits of open files and processes (ulimit -n, "
                      "ulimit -u)",
                      error.what());
  }
}

}  // namespace troupe::apps
