#include "apps/troupe/launch/nodes/follower.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <variant>

#include "core/errors.hpp"

namespace troupe::apps {

using actors::ExitStatus;

namespace {

/// Ranks of a node that was cut off have this long, or --term-timeout if that is less, to end by themselves,
/// and once more to die.
constexpr std::chrono::seconds kLongestGrace{5};
constexpr int kNoGeneration = -1;

/// A rank may write lines without an end; a frame has one.
std::string cut(std::string text) {
  constexpr std::size_t kMostBytes = 4096;
  if (text.size() <= kMostBytes) return text;
  text.resize(kMostBytes);
  return text + "...";
}

}  // namespace

Follower::Follower(Job& job, asio::io_context& loop, actors::Clock& clock, actors::Processes& processes,
                   Terminal& terminal, Hello hello, SecretSource secret)
    : job_(job),
      loop_(loop),
      clock_(clock),
      terminal_(terminal),
      local_(job, loop, processes, clock, terminal),
      hello_(std::move(hello)),
      source_(std::move(secret)),
      trying_(loop) {}

void Follower::start() {
  for (const std::string& warning : job_.options.warnings) terminal_.say("warning: " + warning);
  give_up_at_ = clock_.now() + job_.meeting.patience;
  look();
}

std::string Follower::leader() const {
  return host_of_leader_.empty()
             ? fmt::format("the launcher of node 0 at {}:{}", job_.meeting.host, job_.meeting.port)
             : fmt::format("the launcher of node 0 ({} at {}:{})", host_of_leader_, job_.meeting.host,
                           job_.meeting.port);
}

void Follower::signalled(int signal) {
  const bool ends_job = job_.stop_signals.contains(signal);
  if (state_ == State::following) {
    link_->send(Signalled{signal});
  } else if (ends_job && state_ == State::looking) {
    end(128 + signal, fmt::format("stopped by {} before the job began here", actors::signal_name(signal)));
  } else if (ends_job) {
    stop_signal_ = signal;
  }
}

void Follower::receive(NodeMessage message) {
  if (state_ == State::over) return;
  std::visit([this](const auto& each) { on(each); }, message);
}

void Follower::on(const Greeting& message) {
  host_of_leader_ = message.host;
}

void Follower::on(const Refused& message) {
  if (!message.may_try_again) return end(1, fmt::format("{} refuses: {}", leader(), message.reason));
  const auto link = std::exchange(link_, nullptr);
  link->close();
  not_found(message.reason);
}

void Follower::on(const Welcome& message) {
  const bool is_first = job_.id.empty();
  job_.place = {message.node, message.nodes, message.first_rank, message.world};
  job_.options.max_restarts = message.max_restarts;
  state_ = State::following;
  hello_.node = message.node;
  hello_.job = message.job;
  terminal_.say(is_first ? message.line : leader() + " is back");
  if (!is_first) return;
  job_.token = actors::to_hex(token_of_job(*secret_, message.job));
  const auto named = name_job(job_, message.job);
  if (!named) return end(1, named.error().message);
  auto guard = actors::JobGuard::start(
      {job_.id, mark_of(job_), job_.directory_is_temporary ? job_.directory : std::filesystem::path(), {}});
  if (!guard) return end(1, guard.error().message);
  guard_.emplace(std::move(*guard));
  if (!job_.directory_is_temporary) terminal_.say("logs of this node in " + job_.directory.string());
}

void Follower::on(const Begin& message) {
  generation_ = message.generation;
  if (!message.line.empty()) terminal_.say(message.line);
  job_.master_addr = message.master_addr;
  local_.begin({message.generation, message.master_addr, message.master_port, message.control_port,
                message.fence_token});
  processes_.clear();
  processes_.resize(static_cast<std::size_t>(job_.ranks));
  running_.assign(static_cast<std::size_t>(job_.ranks), false);
  for (int rank = 0; rank < job_.ranks; ++rank) {
    auto process = local_.start({rank, rank}, [this, rank](ExitStatus status) { exited(rank, status); });
    if (!process) {
      terminal_.say(fmt::format("rank {} could not be started: {}", job_.place.first_rank + rank,
                                process.error().message));
      return link_->send(NotStarted{generation_, rank, process.error().message});
    }
    processes_[static_cast<std::size_t>(rank)] = std::move(*process);
    running_[static_cast<std::size_t>(rank)] = true;
  }
}

void Follower::exited(int rank, ExitStatus status) {
  running_[static_cast<std::size_t>(rank)] = false;
  auto report = local_.report(rank, {job_.place.first_rank + rank, generation_, {}, status, clock_.now()});
  if (state_ == State::following) {
    for (std::string& line : report.last_error_lines) line = cut(std::move(line));
    link_->send(Exited{generation_, rank, status.code, status.signal, report.pid, cut(report.error_message),
                       report.meaning, report.last_error_lines});
  } else if (state_ == State::cut_off && std::ranges::count(running_, true) == 0) {
    // Not here: this is called by what it destroys.
    clock_.cancel(kill_);
    kill_ = clock_.arm({}, [this] { all_have_ended(); });
  }
}

void Follower::on(const Signal& message) {
  const auto rank = static_cast<std::size_t>(message.rank);
  if (message.generation != generation_ || message.rank < 0 || rank >= processes_.size()) return;
  actors::Process* const process = processes_[rank].get();
  if (process == nullptr) return;
  if (message.group) return process->signal_group(message.signal);
  if (message.signal == SIGCONT) {
    if (process->wake()) local_.woken(message.rank);
    return;
  }
  if (!process->handles(message.signal)) return local_.withheld(message.rank, message.signal);
  process->signal(message.signal);
}

void Follower::on(const Failed& message) {
  if (message.generation != generation_) return;
  local_.write_failure(message.text);
  terminal_.say(message.line);
}

void Follower::on(const Ended& message) {
  for (const std::string& line : message.lines) terminal_.say(line);
  processes_.clear();
  // One that came only now has nothing to clear away.
  if (generation_ != kNoGeneration) local_.clear_away();
  link_->send(Cleared{message.generation});
}

void Follower::on(const JobOver& message) {
  report_ = message.report;
  end(message.exit_code, message.line);
}

void Follower::lost(const std::string& reason) {
  link_.reset();
  if (state_ == State::looking) return not_found(reason);
  state_ = State::cut_off;
  const std::string failure = fmt::format("{} was lost: {}", leader(), reason);
  const bool has_ranks = std::ranges::count(running_, true) > 0;
  terminal_.say(failure + (has_ranks ? "; stopping the ranks of this node" : ""));
  give_up_at_ = clock_.now() + job_.meeting.patience;
  if (!has_ranks) return all_have_ended();
  local_.write_failure(failure);
  signal_ranks(SIGTERM);
  signal_ranks(SIGCONT);
  const auto grace =
      std::min(std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::duration<double>(std::min(job_.options.term_timeout_seconds, 1e6))),
               std::chrono::nanoseconds(kLongestGrace));
  kill_ = clock_.arm(grace, [this] {
    signal_ranks(SIGKILL);
    kill_ = clock_.arm(kLongestGrace, [this] { all_have_ended(); });
  });
}

void Follower::signal_ranks(int signal) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (running_[rank] && processes_[rank]) processes_[rank]->signal_group(signal);
  }
}

/// What was cut off from the job is gone.
void Follower::all_have_ended() {
  clock_.cancel(std::exchange(kill_, 0));
  processes_.clear();
  running_.clear();
  if (generation_ != kNoGeneration) local_.clear_away();
  if (stop_signal_ != 0) {
    return end(128 + stop_signal_, fmt::format("stopped by {}", actors::signal_name(stop_signal_)));
  }
  if (job_.options.max_restarts == 0) {
    return end(1, fmt::format("job {} ends here with exit code 1: {} was lost, and no restart was asked for "
                              "(--max-restarts)",
                              job_.id, leader()));
  }
  state_ = State::looking;
  terminal_.say(fmt::format("looking for {} for at most {:.3g} s", leader(),
                            std::chrono::duration<double>(job_.meeting.patience).count()));
  look();
}

void Follower::end(int exit_code, const std::string& line) {
  state_ = State::over;
  exit_code_ = exit_code;
  last_line_ = line;
  clock_.cancel(std::exchange(again_, 0));
  clock_.cancel(std::exchange(kill_, 0));
  if (link_) link_->close();
  loop_.stop();
}

int Follower::conclude() {
  processes_.clear();
  if (!last_line_.empty()) terminal_.say(last_line_);
  if (!job_.id.empty() && !job_.directory_is_temporary && !report_.empty()) {
    std::ofstream(job_.directory / "job_report.json") << report_;
  }
  terminal_.drain();
  return exit_code_;
}

}  // namespace troupe::apps
