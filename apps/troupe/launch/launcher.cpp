#include "apps/troupe/launch/launcher.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <asio/io_context.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "actors/world/job_guard.hpp"
#include "actors/world/log.hpp"
#include "actors/world/loop_clock.hpp"
#include "actors/world/loop_signals.hpp"
#include "actors/world/own_address.hpp"
#include "actors/world/process/posix.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "apps/troupe/launch/nodes/follower.hpp"
#include "apps/troupe/launch/nodes/journal.hpp"
#include "apps/troupe/launch/nodes/leader.hpp"
#include "apps/troupe/launch/nodes/lobby.hpp"
#include "apps/troupe/launch/nodes/secret.hpp"
#include "apps/troupe/launch/terminal.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/version.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using core::Errc;
using core::Result;

namespace {

/// The things that every launcher of this process needs.
struct Scene {
  explicit Scene(asio::io_context& loop) : clock(loop), processes(loop), terminal(loop) {}

  actors::LoopClock clock;
  actors::PosixProcesses processes;
  Terminal terminal;
};

std::set<int> signals_of(const Job& job) {
  std::set<int> signals = job.stop_signals;
  signals.insert({SIGUSR1, SIGUSR2});
  return signals;
}

/// The command, shortened to fit a first frame. Two of them are equal only if the commands are.
std::vector<std::string> in_short(const std::vector<std::string>& program) {
  constexpr std::size_t kMostWords = 100;
  constexpr std::size_t kMostBytes = 200;
  std::vector<std::string> words;
  std::string rest;
  for (const std::string& word : program) {
    if (words.size() == kMostWords) {
      rest.append(word).push_back('\0');
    } else if (word.size() > kMostBytes) {
      words.push_back(fmt::format("{}... (hash {:016x})", word.substr(0, kMostBytes), core::hash64(word)));
    } else {
      words.push_back(word);
    }
  }
  if (!rest.empty()) words.push_back(fmt::format("more words (hash {:016x})", core::hash64(rest)));
  return words;
}

Hello introduce(const Job& job) {
  Hello hello;
  hello.version = core::kVersion;
  hello.host = host_name();
  hello.instance = posix::unique_name();
  hello.node = job.meeting.node;
  hello.is_numbered = hello.node >= 0;
  hello.ranks = job.ranks;
  hello.fewest_ranks = job.fewest_ranks;
  hello.spares = job.options.spares;
  const auto& meeting = job.meeting;
  hello.settings = {{"--nnodes", meeting.fewest_nodes < meeting.nodes
                                     ? fmt::format("{}:{}", meeting.fewest_nodes, meeting.nodes)
                                     : std::to_string(meeting.nodes)},
                    {"--rdzv-id", job.run_id},
                    {"--recovery", job.options.recovery},
                    {"--max-restarts", std::to_string(job.options.max_restarts)},
                    {"--term-timeout", std::to_string(job.options.term_timeout_seconds)},
                    {"--restart-backoff", std::to_string(job.options.restart_backoff_seconds)}};
  hello.program = in_short(job.options.program);
  return hello;
}

/// `file`: where the launchers' secret is, if that is only for this job.
Result<actors::JobGuard> guard_of(const Job& job, fs::path file = {}) {
  return actors::JobGuard::start(
      {job.id, mark_of(job), job.directory_is_temporary ? job.directory : fs::path(), std::move(file)});
}

/// A launcher that has yet to learn the job's name has no folder for a file of its own.
actors::LogOptions log_of(const Job& job) {
  auto options = job.log;
  if (!options.file.empty())
    options.file = job.directory.empty() ? "" : (job.directory / "launcher.log").string();
  return options;
}

Result<int> run_alone(Job& job) {
  const actors::JobGuard guard = TRY(guard_of(job));
  asio::io_context loop{1};
  Scene scene(loop);
  TRY(scene.terminal.log_by(log_of(job)));
  Leader leader(job, loop, scene.clock, scene.processes, scene.terminal);
  const actors::LoopSignals listening(loop, signals_of(job), [&](int signal) { leader.signalled(signal); });
  leader.start();
  loop.run();
  return leader.conclude();
}

SecretSource secret_of(const Job& job, bool makes_missing) {
  return {job.options.token_file, actors::is_loopback(job.meeting.host), job.meeting.port, makes_missing};
}

Result<std::optional<Journal>> journal_of(const Job& job) {
  if (job.options.journal.empty()) return std::nullopt;
  auto journal = TRY(Journal::open(job.options.journal));
  const auto& before = journal.before();
  if (before && before->program != in_short(job.options.program)) {
    return core::fail(
        Errc::mismatch,
        "--journal: {} belongs to job {}, whose command begins with {}; give each job a file of its own, "
        "or remove it if that job has ended",
        job.options.journal, before->job, before->program.empty() ? "" : before->program.front());
  }
  return std::optional(std::move(journal));
}

Result<int> lead(Job& job, asio::io_context& loop, Lobby& lobby) {
  auto journal = TRY(journal_of(job));
  const JobRecord* const before = journal && journal->before() ? &*journal->before() : nullptr;
  const bool is_one_host = actors::is_loopback(job.meeting.host);
  auto secret = TRY(find_secret(secret_of(job, true), actors::process_variables()));
  if (!secret) return core::fail(Errc::io, "the launchers' secret disappeared while it was being made");
  // Processes that stay know each other by it.
  if (before && is_one_host) secret = TRY(actors::token_from_hex(before->secret));
  if (before) job.place.resumed = before->generation + 1;
  TRY(name_job(job, before ? before->job : unique_id(job)));
  job.token = actors::to_hex(token_of_job(*secret, job.id));
  const int port = job.meeting.port;
  const actors::JobGuard guard =
      TRY(guard_of(job, is_one_host ? published_secret(launcher_name(job), port) : fs::path()));
  if (is_one_host) TRY(publish_secret(*secret, launcher_name(job), port));
  Scene scene(loop);
  TRY(scene.terminal.log_by(log_of(job)));
  Leader leader(job, loop, scene.clock, scene.processes, scene.terminal);
  const actors::LoopSignals listening(loop, signals_of(job), [&](int signal) { leader.signalled(signal); });
  leader.start(lobby, *secret, introduce(job), std::move(journal));
  loop.run();
  return leader.conclude();
}

Result<int> follow(Job& job, asio::io_context& loop) {
  Scene scene(loop);
  TRY(scene.terminal.log_by(log_of(job)));
  Follower follower(job, loop, scene.clock, scene.processes, scene.terminal, introduce(job),
                    secret_of(job, false));
  const actors::LoopSignals listening(loop, signals_of(job), [&](int signal) { follower.signalled(signal); });
  follower.start();
  loop.run();
  return follower.conclude();
}

/// Node 0 is where the meeting place is. A launcher that does not know its number finds out by its address,
/// and, where several are on one host, by being the first.
Result<int> run_with_others(Job& job) {
  asio::io_context loop{1};
  Lobby lobby(loop, host_name(), job.meeting.heartbeat);
  const bool may_lead = job.meeting.node == 0 || (job.meeting.node < 0 && is_here(job.meeting));
  if (!may_lead) return follow(job, loop);
  const auto opened = lobby.open(job.meeting);
  if (opened) return lead(job, loop, lobby);
  const bool is_served = opened.error().code == Errc::already_exists;
  if (job.meeting.node < 0 && is_served) return follow(job, loop);
  return core::fail(Errc::invalid_argument, "{}", opened.error().message);
}

}  // namespace

Result<int> run_job(Job& job) {
  // Asio throws where no descriptor is left.
  try {
    ::signal(SIGPIPE, SIG_IGN);
    return job.meeting.nodes == 1 ? run_alone(job) : run_with_others(job);
  } catch (const std::system_error& error) {
    return core::fail(core::Errc::io,
                      "cannot watch the ranks: {}; see the limits of open files and processes (ulimit -n, "
                      "ulimit -u)",
                      error.what());
  }
}

}  // namespace troupe::apps
