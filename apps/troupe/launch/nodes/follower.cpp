#include "apps/troupe/launch/nodes/follower.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <variant>

#include "core/disregard.hpp"
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
  // Another launcher of node 0 may number the nodes anew.
  const bool is_first = job_.id.empty() || job_.place.node != message.node;
  if (is_first) processes_.clear();
  if (is_first) untold_.clear();
  job_.place = {message.node, message.nodes, message.first_slot, message.world};
  job_.keeps_processes = message.keeps_processes;
  job_.has_journal = message.has_journal;
  job_.token = actors::to_hex(token_of_job(*secret_, message.job));
  job_.options.max_restarts = message.max_restarts;
  state_ = State::following;
  clock_.cancel(std::exchange(kill_, 0));
  hello_.node = message.node;
  hello_.job = message.job;
  terminal_.say(is_first ? message.line : leader() + " is back");
  constexpr int kPorts = 4;  // this many losses may follow each other quickly
  for (int i = static_cast<int>(ports_.size()); job_.keeps_processes && i < kPorts; ++i) offer_port();
  told_step_ = -1;
  for (Process& each : processes_) each.told = {};
  for (const auto& exited : std::exchange(untold_, {})) link_->send(exited);
  if (look_ == 0) look_at_members();
  if (!is_first) return;
  guard_.reset();
  const auto named = name_job(job_, message.job);
  if (!named) return end(1, named.error().message);
  auto guard = actors::JobGuard::start(
      {job_.id, mark_of(job_), job_.directory_is_temporary ? job_.directory : std::filesystem::path(), {}});
  if (!guard) return end(1, guard.error().message);
  guard_.emplace(std::move(*guard));
  if (!job_.directory_is_temporary) terminal_.say("logs of this node in " + job_.directory.string());
}

void Follower::offer_port() {
  auto port = ReservedPort::any();
  if (!port) return terminal_.say(port.error().message);
  const int number = port->number();
  ports_.emplace(number, std::move(*port));
  link_->send(FreePort{number});
}

void Follower::on(const Begin& message) {
  generation_ = {message.generation,
                 message.master_addr,
                 message.master_port,
                 message.control_host,
                 message.control_port,
                 message.fence_token,
                 {}};
  const auto ranks = std::min(message.slots.size(), message.nodes.size());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    generation_.seats.push_back({message.slots[rank], message.nodes[rank]});
  job_.master_addr = message.master_addr;
  if (message.is_anew) {
    processes_.clear();
    processes_.resize(static_cast<std::size_t>(job_.ranks + job_.options.spares));
    local_.begin(generation_);
  } else {
    // Ranks wait for this.
    const auto told = actors::announce_epoch(
        epoch_file(job_), {epoch_of(message.generation), message.control_host,
                           static_cast<std::uint16_t>(message.control_port), generation_.seats});
    if (!told) terminal_.say(told.error().message);
    local_.go_on(generation_);
  }
  for (const std::string& line : message.lines) terminal_.say(line);
  const auto used = ports_.find(message.control_port);
  const bool is_here = !generation_.seats.empty() && generation_.seats.front().node == job_.place.node;
  if (!is_here || used == ports_.end()) return;
  last_port_.emplace(std::move(used->second));
  ports_.erase(used);
  offer_port();
}

void Follower::on(const Start& message) {
  const auto slot = static_cast<std::size_t>(message.slot);
  if (message.slot < 0 || slot >= processes_.size()) return;
  const auto rank = message.rank < 0 ? std::nullopt : std::optional(message.rank);
  Process& started = processes_[slot];
  started = {};
  started.generation = generation_.number;
  auto process = local_.start({message.slot, rank},
                              [this, own = message.slot](ExitStatus status) { exited(own, status); });
  if (!process) {
    terminal_.say(fmt::format("{} {} could not be started: {}", rank ? "rank" : "spare",
                              rank.value_or(job_.place.first_slot + message.slot), process.error().message));
    return link_->send(NotStarted{generation_.number, message.slot, process.error().message});
  }
  started.process = std::move(*process);
  started.is_running = true;
  if (look_ == 0) look_at_members();
}

void Follower::on(const WaitForMore& message) {
  core::disregard(actors::ask_to_wait(epoch_file(job_), epoch_of(message.generation)),
                  "they go on as they are");
}

/// The launcher of node 0 decides by what it knows of all ranks.
void Follower::look_at_members() {
  constexpr std::chrono::milliseconds kBetweenLooks{50};
  look_ = 0;
  if (!job_.keeps_processes || state_ != State::following || !has_ranks()) return;
  tell_members();
  look_ = clock_.arm(kBetweenLooks, [this] { look_at_members(); });
}

void Follower::tell_members() {
  Members message;
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    Process& each = processes_[slot];
    if (!each.process) continue;
    const auto member = actors::declared(member_file(job_, static_cast<int>(slot)));
    if (!member || *member == each.told) continue;
    each.told = *member;
    message.slots.push_back(static_cast<int>(slot));
    message.epochs.push_back(member->epoch.value);
    message.states.push_back(static_cast<int>(member->state));
  }
  std::ifstream(progress_file(job_)) >> message.step;
  if (message.slots.empty() && message.step == told_step_) return;
  told_step_ = message.step;
  link_->send(message);
}

bool Follower::has_ranks() const {
  return std::ranges::any_of(processes_, &Process::is_running);
}

void Follower::exited(int slot, ExitStatus status) {
  Process& ended = processes_[slot];
  ended.is_running = false;
  const auto seat = std::ranges::find(generation_.seats, job_.place.first_slot + slot, &actors::Seat::slot);
  const auto rank = static_cast<int>(seat - generation_.seats.begin());
  auto report = local_.report(slot, {rank, ended.generation, {}, status, clock_.now()});
  for (std::string& line : report.last_error_lines) line = cut(std::move(line));
  Exited message{ended.generation, slot,
                 status.code,      status.signal,
                 report.pid,       cut(report.error_message),
                 report.meaning,   report.last_error_lines};
  if (state_ == State::following) {
    if (job_.keeps_processes) tell_members();
    link_->send(message);
  } else if (state_ == State::looking) {
    untold_.push_back(std::move(message));
  } else if (state_ == State::cut_off && !has_ranks()) {
    // Not here: this is called by what it destroys.
    clock_.cancel(kill_);
    kill_ = clock_.arm({}, [this] { all_have_ended(); });
  }
}

void Follower::on(const Signal& message) {
  const auto slot = static_cast<std::size_t>(message.slot);
  if (message.slot < 0 || slot >= processes_.size()) return;
  actors::Process* const process = processes_[slot].process.get();
  if (process == nullptr || processes_[slot].generation != message.generation) return;
  if (message.group) return process->signal_group(message.signal);
  if (message.signal == SIGCONT) {
    if (process->wake()) local_.woken(message.slot);
    return;
  }
  if (!process->handles(message.signal)) return local_.withheld(message.slot, message.signal);
  process->signal(message.signal);
}

void Follower::on(const Failed& message) {
  if (message.generation != generation_.number) return;
  local_.write_failure(message.text);
  if (!message.line.empty()) terminal_.say(message.line);
}

void Follower::on(const Ended& message) {
  for (const std::string& line : message.lines) terminal_.say(line);
  processes_.clear();
  // One that came only now has nothing to clear away.
  if (generation_.number != kNoGeneration) local_.clear_away();
  link_->send(Cleared{message.generation});
}

void Follower::on(const JobOver& message) {
  report_ = message.report;
  end(message.exit_code, message.line);
}

void Follower::lost(const std::string& reason) {
  link_.reset();
  if (state_ == State::looking) return not_found(reason);
  const std::string failure = fmt::format("{} was lost: {}", leader(), reason);
  give_up_at_ = clock_.now() + job_.meeting.patience;
  if (job_.has_journal && job_.keeps_processes && has_ranks()) {
    // Less than they wait for another epoch.
    constexpr std::chrono::seconds kStay{15};
    terminal_.say(fmt::format("{}; the ranks of this node stay for {} s, for another to go on with the job",
                              failure, kStay.count()));
    state_ = State::looking;
    kill_ = clock_.arm(kStay, [this, failure] { stop_ranks(failure); });
    return look();
  }
  stop_ranks(failure);
}

void Follower::stop_ranks(const std::string& failure) {
  clock_.cancel(std::exchange(again_, 0));
  if (const auto link = std::exchange(link_, nullptr)) link->close();
  state_ = State::cut_off;
  const bool must_stop = has_ranks();
  terminal_.say(failure + (must_stop ? "; stopping the ranks of this node" : ""));
  if (!must_stop) return all_have_ended();
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
  for (const Process& each : processes_) {
    if (each.is_running) each.process->signal_group(signal);
  }
}

/// What was cut off from the job is gone.
void Follower::all_have_ended() {
  clock_.cancel(std::exchange(kill_, 0));
  processes_.clear();
  if (generation_.number != kNoGeneration) local_.clear_away();
  if (stop_signal_ != 0) {
    return end(128 + stop_signal_, fmt::format("stopped by {}", actors::signal_name(stop_signal_)));
  }
  if (job_.options.max_restarts == 0 && !job_.has_journal &&
      job_.meeting.fewest_nodes == job_.meeting.nodes) {
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
  clock_.cancel(std::exchange(look_, 0));
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
