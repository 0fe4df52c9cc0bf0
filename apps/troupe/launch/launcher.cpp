#include "apps/troupe/launch/launcher.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/launch/node_agent.hpp"
#include "actors/roles/machine.hpp"
#include "actors/world/entropy.hpp"
#include "actors/world/job_guard.hpp"
#include "actors/world/process.hpp"
#include "apps/troupe/launch/environment.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "apps/troupe/launch/report.hpp"
#include "apps/troupe/launch/terminal.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using actors::Ending;
using actors::ExitStatus;
using actors::NodeAgentMachine;
using actors::NodeEffect;
using actors::NodeEffects;
using actors::OutputStream;
using actors::Process;
using core::Result;

namespace {

std::chrono::nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

actors::NodeAgentConfig machine_config(const Job& job) {
  actors::NodeAgentConfig config;
  config.ranks = job.ranks;
  config.max_restarts = job.options.max_restarts;
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

/// The shell of the NodeAgent: performs what the machine decides, and tells it what happens.
class Launcher {
 public:
  explicit Launcher(const Job& job)
      : job_(job),
        machine_(machine_config(job)),
        terminal_(loop_),
        deadline_(loop_),
        signals_(loop_),
        environment_(own_environment()) {}

  int run() {
    announce();
    listen_to_signals();
    perform(machine_.start(now()));
    loop_.run();
    write_report();
    terminal_.drain();
    return exit_code_;
  }

 private:
  struct Worker {
    std::unique_ptr<RankLog> log;
    std::unique_ptr<Process> process;
    pid_t pid = 0;
  };

  void announce() {
    terminal_.say(fmt::format("job {}: {} rank{} of {}{}", job_.id, job_.ranks, job_.ranks == 1 ? "" : "s",
                              job_.options.program.front(),
                              job_.directory_is_temporary ? "" : "; logs in " + job_.directory.string()));
    if (job_.ranks > 1 && !::getenv("OMP_NUM_THREADS")) {
      terminal_.say("OMP_NUM_THREADS is set to 1 for each rank; set it yourself for more");
    }
    for (const std::string& warning : job_.options.warnings) terminal_.say("warning: " + warning);
  }

  void listen_to_signals() {
    ::signal(SIGPIPE, SIG_IGN);
    std::error_code ignored;
    for (int signal : {SIGUSR1, SIGUSR2}) signals_.add(signal, ignored);
    for (int signal : job_.stop_signals) {
      struct sigaction inherited {};
      ::sigaction(signal, nullptr, &inherited);
      // nohup: ignoring hang-ups from the start is meant so.
      if (signal != SIGHUP || inherited.sa_handler != SIG_IGN) signals_.add(signal, ignored);
    }
    wait_for_signal();
  }

  void wait_for_signal() {
    signals_.async_wait([this](const std::error_code& error, int signal) {
      if (error) return;
      const bool stops = job_.stop_signals.contains(signal);
      if (stops) terminal_.say(fmt::format("received {}; stopping the ranks", actors::signal_name(signal)));
      perform(machine_.signalled(signal));
      wait_for_signal();
    });
  }

  /// Effects may bring events about which have effects: one after the other.
  void perform(NodeEffects effects) {
    for (NodeEffect& effect : effects) queue_.push_back(std::move(effect));
    if (performing_) return;
    performing_ = true;
    while (!queue_.empty()) {
      const NodeEffect effect = std::move(queue_.front());
      queue_.pop_front();
      std::visit([this](const auto& each) { on(each); }, effect);
    }
    performing_ = false;
  }

  void on(const actors::StartGang& start) {
    if (start.generation > 0) {
      terminal_.say(fmt::format("restart {} of {}", machine_.restarts(), job_.options.max_restarts));
    }
    report_ = GenerationReport{};
    report_.generation = start.generation;
    report_.started = now();
    report_.oom_before = oom_kills();
    workers_.clear();
    workers_.resize(static_cast<std::size_t>(job_.ranks));

    const auto ports = free_ports(2);
    if (!ports) return give_up_start(0, ports.error());
    const Generation generation{start.generation, job_.master_port == 0 ? ports->at(0) : job_.master_port,
                                ports->at(1), fmt::format("{:016x}", actors::entropy())};
    for (int rank = 0; rank < job_.ranks; ++rank) {
      const Result<void> started = spawn(generation, rank);
      if (!started) return give_up_start(rank, started.error());
    }
  }

  void give_up_start(int rank, const core::Error& error) {
    terminal_.say(fmt::format("rank {} could not be started: {}", rank, error.message));
    perform(machine_.start_failed(rank));
  }

  Result<void> spawn(const Generation& generation, int rank) {
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    const fs::path directory = rank_directory(job_, generation.number, rank);
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) return core::fail(core::Errc::io, "cannot make {}: {}", directory.string(), error.message());

    worker.log = std::make_unique<RankLog>(job_, generation.number, rank, terminal_);
    const actors::ProcessSpec spec{job_.program, job_.arguments,
                                   rank_environment(job_, generation, rank, environment_),
                                   cpus_of(job_, rank)};
    RankLog& log = *worker.log;
    worker.process = TRY(Process::spawn(
        loop_, spec,
        {.output = [&log](OutputStream stream, std::string_view bytes) { log.output(stream, bytes); },
         .closed = [&log](OutputStream stream) { log.finish(stream); },
         .exited = [this, rank](ExitStatus status) { exited(rank, status); }}));
    worker.pid = worker.process->pid();
    return {};
  }

  void exited(int rank, ExitStatus status) {
    if (!status.success()) read_progress();
    const bool first = !status.success() && machine_.state() == "watching";
    NodeEffects effects = machine_.exited(rank, status, now());
    if (first) {
      const std::string failure = fmt::format("rank {} failed: {}", rank, to_string(status));
      // Before the others are asked to end: this tells them why.
      std::ofstream(failure_file(job_, machine_.generation())) << failure;
      terminal_.say(failure + (job_.ranks > 1 ? "; stopping the others" : ""));
    }
    perform(std::move(effects));
  }

  void read_progress() {
    std::ifstream file(progress_file(job_));
    std::int64_t step = 0;
    if (file >> step) machine_.committed(step);
  }

  void on(const actors::SignalRank& effect) {
    Process* process = workers_[static_cast<std::size_t>(effect.rank)].process.get();
    if (!process) return;
    effect.group ? process->signal_group(effect.signal) : process->signal(effect.signal);
  }

  void on(const actors::ArmDeadline& arm) {
    const int armed = ++deadlines_;
    deadline_.expires_after(arm.after);
    deadline_.async_wait([this, armed](const std::error_code& error) {
      // A timer that fired already can no longer be cancelled.
      if (!error && armed == deadlines_) perform(machine_.deadline(now()));
    });
  }

  void on(const actors::CancelDeadline&) {
    ++deadlines_;
    deadline_.cancel();
  }

  void on(const actors::EndGeneration& end) {
    const int killed = actors::kill_processes_marked("TROUPE_JOB_ID=" + job_.id);
    if (killed > 0) terminal_.say(fmt::format("killed {} processes the ranks left behind", killed));
    actors::remove_job_segments(job_.id);
    report_.oom_after = oom_kills();
    for (Worker& worker : workers_) {
      if (!worker.log) continue;
      for (OutputStream stream : {OutputStream::out, OutputStream::err}) worker.log->finish(stream);
    }
    complete_report(end);
    for (const std::string& line : describe(report_)) terminal_.say(line);
    for (Worker& worker : workers_) worker.process.reset();
  }

  void complete_report(const actors::EndGeneration& end) {
    report_.cause = end.cause;
    for (const Ending& ending : end.endings) {
      const Worker& worker = workers_[static_cast<std::size_t>(ending.rank)];
      RankReport rank{ending, worker.pid, {}, {}};
      const auto& lines = worker.log->last_error_lines().lines();
      rank.last_error_lines.assign(lines.begin(), lines.end());
      const fs::path file = error_file(job_, ending.generation, ending.rank);
      rank.error_message = read_error_file(file);
      if (!ending.status.success() && !fs::exists(file)) write_error_file(file, rank);
      report_.ranks.push_back(std::move(rank));
    }
  }

  void on(const actors::Finish& finish) {
    exit_code_ = finish.exit_code;
    if (exit_code_ != 0) {
      terminal_.say(
          fmt::format("job {} ends with exit code {}: {}", job_.id, exit_code_, machine_.verdict()));
    }
    loop_.stop();
  }

  void write_report() {
    if (job_.directory_is_temporary) return;
    std::ofstream(job_.directory / "job_report.json")
        << to_json(job_, {exit_code_, machine_.verdict(), machine_.restarts(), report_});
  }

  const Job& job_;
  NodeAgentMachine machine_;
  asio::io_context loop_{1};
  Terminal terminal_;
  asio::steady_timer deadline_;
  asio::signal_set signals_;
  std::vector<std::string> environment_;
  std::vector<Worker> workers_;
  GenerationReport report_;
  std::deque<NodeEffect> queue_;
  bool performing_ = false;
  int deadlines_ = 0;  ///< how often one was armed or cancelled
  int exit_code_ = 1;
};

}  // namespace

Result<int> run_job(const Job& job) {
  const actors::JobGuard guard =
      TRY(actors::JobGuard::start({job.id, job.directory_is_temporary ? job.directory : fs::path()}));
  return Launcher(job).run();
}

}  // namespace troupe::apps
