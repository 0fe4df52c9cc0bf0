#include "apps/troupe/launch/nodes/leader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>
#include <variant>

#include "actors/launch/standing.hpp"
#include "actors/world/epochs.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using actors::ExitStatus;
using actors::Membership;
using core::Result;

namespace {

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

actors::NodeAgentConfig agent_config(const Job& job, const std::optional<actors::NodeAdmission>& admission) {
  actors::NodeAgentConfig config;
  config.ranks = job.place.world;
  config.max_restarts = job.options.max_restarts;
  config.in_place = job.keeps_processes;
  config.spares = job.options.spares;
  config.fewest_ranks = job.fewest_ranks;
  for (const int signal : job.stop_signals) config.forwarded_signals.erase(signal);
  config.term_timeout = nanoseconds_of(job.options.term_timeout_seconds);
  config.first_backoff = nanoseconds_of(job.options.restart_backoff_seconds);
  config.node_patience = job.meeting.patience;
  return admission ? admission->agent_config(config) : config;
}

std::string in_seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

/// A process of another node.
class Leader::RemoteProcess final : public actors::Process {
 public:
  RemoteProcess(Leader& leader, int node, int slot, int generation)
      : leader_(leader), node_(node), slot_(slot), generation_(generation) {}

  std::int64_t pid() const override { return 0; }
  void signal(int signal) override { send(signal, false); }
  /// Its launcher looks when it gets the signal.
  bool handles(int) const override { return true; }
  void signal_group(int signal) override { send(signal, true); }
  bool is_stopped() const override { return false; }
  /// Its launcher says so if it does.
  bool wake() override {
    send(SIGCONT, false);
    return false;
  }

 private:
  void send(int signal, bool group) const {
    const auto& link = leader_.nodes_[node_].link;
    if (link) link->send(Signal{generation_, slot_, signal, group});
  }

  Leader& leader_;
  int node_;
  int slot_;
  int generation_;  ///< in which it was started
};

Leader::Leader(Job& job, asio::io_context& loop, actors::Clock& clock, actors::Processes& processes,
               Terminal& terminal)
    : job_(job),
      loop_(loop),
      clock_(clock),
      terminal_(terminal),
      local_(job, loop, processes, clock, terminal) {}

void Leader::start() {
  nodes_.resize(1);
  terminal_.say(fmt::format("job {}: {}{}", job_.id, summary(),
                            job_.directory_is_temporary ? "" : "; logs in " + job_.directory.string()));
  start_agent();
}

void Leader::start_agent() {
  if (job_.ranks > 1 && !::getenv("OMP_NUM_THREADS")) {
    terminal_.say("OMP_NUM_THREADS is set to 1 for each rank; set it yourself for more");
  }
  for (const std::string& warning : job_.options.warnings) terminal_.say("warning: " + warning);
  agent_.emplace(agent_config(job_, admission_), clock_, *this);
  const auto found = job_.keeps_processes && admission_ ? admission_->adopted() : std::nullopt;
  if (!found) return agent_->start();
  auto begun = reserve_ports();
  if (!begun) return agent_->start();
  generation_.number = report_.generation = found->generation;
  report_.started = clock_.now();
  local_.begin(generation_);
  agent_->adopt(*found);
}

std::string Leader::summary() const {
  const std::string what = fmt::format("{} rank{} of {}", job_.place.world, job_.place.world == 1 ? "" : "s",
                                       job_.options.program.front());
  if (is_alone()) return what;
  std::vector<std::string> places;
  int first = 0;
  for (const auto& each : table().members()) {
    const int last = first + each.hello.ranks - 1;
    places.push_back(first == last ? fmt::format("{} (rank {})", each.hello.host, last)
                                   : fmt::format("{} (ranks {} to {})", each.hello.host, first, last));
    first = last + 1;
  }
  return fmt::format("{} on {} node{}: {}", what, job_.place.nodes, job_.place.nodes == 1 ? "" : "s",
                     fmt::join(places, ", "));
}

void Leader::signalled(int signal) {
  const bool ends_job = job_.stop_signals.contains(signal);
  if (!agent_) {
    if (ends_job) give_up(128 + signal, fmt::format("stopped by {}", actors::signal_name(signal)));
    return;
  }
  on(0, Signalled{signal});
}

/// An engine that stops a job sends the signal to all launchers; only the second to one of them says it
/// again.
void Leader::on(int node, const Signalled& message) {
  const bool ends_job = job_.stop_signals.contains(message.signal);
  const bool is_same = ends_job && have_signalled_.insert(node).second && have_signalled_.size() > 1;
  if (is_same) return;
  if (ends_job) {
    terminal_.say(fmt::format("received {}{}; stopping the ranks", actors::signal_name(message.signal),
                              is_alone() ? "" : " on " + member(node).hello.host));
  }
  agent_->signalled(message.signal);
}

int Leader::conclude() {
  if (!last_line_.empty()) terminal_.say(last_line_);
  if (!job_.directory_is_temporary && agent_) {
    std::ofstream(job_.directory / "job_report.json")
        << to_json(job_, {exit_code_, agent_->machine().verdict(), agent_->machine().restarts(), report_});
  }
  if (journal_ && agent_) journal_->remove();
  terminal_.drain();
  return exit_code_;
}

Result<void> Leader::reserve_ports() {
  ports_.clear();
  ports_.push_back(job_.master_port == 0
                       ? TRY(ReservedPort::any())
                       : TRY(ReservedPort::of(job_.master_addr, job_.master_port, "--master-addr")));
  ports_.push_back(TRY(ReservedPort::any()));
  generation_.master_addr = job_.master_addr;
  generation_.master_port = ports_[0].number();
  return {};
}

Result<void> Leader::begin(const actors::StartGang& gang) {
  report_ = GenerationReport{};
  report_.generation = gang.generation;
  report_.started = clock_.now();
  TRY(reserve_ports());
  generation_ = TRY(next_generation(gang.generation, gang.slots));
  std::vector<std::string> lines;
  if (gang.generation > 0) {
    lines.push_back(fmt::format("restart {} of {}", agent_->machine().restarts(), job_.options.max_restarts));
    terminal_.say(lines.back());
  }
  replaced_.clear();
  note_job(generation_.number);
  local_.begin(generation_);
  for (Node& node : nodes_) {
    node.processes.clear();
    node.exits.clear();
    node.members.clear();
    send_generation(node, true, lines);
  }
  return {};
}

int Leader::own_slot(int slot) const {
  return is_alone() ? slot : slot - member(node_of(slot)).first_slot;
}

Result<std::unique_ptr<actors::Process>> Leader::start(actors::ProcessPlace place,
                                                       std::function<void(ExitStatus)> exited) {
  const int node = node_of(place.slot);
  const int slot = own_slot(place.slot);
  if (node == 0) {
    auto started = local_.start({slot, place.rank}, std::move(exited));
    if (!started && !place.rank)
      terminal_.say(fmt::format("spare {} could not be started: {}", place.slot, started.error().message));
    return started;
  }
  Node& remote = nodes_[node];
  remote.processes[slot] = {generation_.number, std::move(exited)};
  remote.members.erase(slot);
  if (remote.link) remote.link->send(Start{slot, place.rank.value_or(-1)});
  return std::make_unique<RemoteProcess>(*this, node, slot, generation_.number);
}

std::unique_ptr<actors::Process> Leader::adopt(int slot, std::function<void(ExitStatus)> exited) {
  const int node = node_of(slot);
  const auto& hello = member(node).hello;
  const auto at = std::ranges::find(hello.running, own_slot(slot)) - hello.running.begin();
  const int generation = hello.started[static_cast<std::size_t>(at)];
  nodes_[node].processes[own_slot(slot)] = {generation, std::move(exited)};
  return std::make_unique<RemoteProcess>(*this, node, own_slot(slot), generation);
}

void Leader::not_started(int rank, const core::Error& error) {
  terminal_.say(fmt::format("{} could not be started: {}", name_of_rank(rank, host_of(rank)), error.message));
}

std::optional<Membership> Leader::declared(int slot) const {
  const int node = node_of(slot);
  if (node == 0) return actors::declared(member_file(job_, own_slot(slot)));
  const auto& members = nodes_[node].members;
  const auto found = members.find(own_slot(slot));
  return found == members.end() ? std::nullopt : std::optional(found->second);
}

actors::Standing Leader::standing_of(const std::vector<int>& slots) {
  if (!job_.keeps_processes) return {};
  return actors::standing_of(slots, epoch_of(generation_.number),
                             [this](int slot) { return declared(slot); });
}

std::vector<bool> Leader::waiting_of(const std::vector<int>& slots) {
  return actors::waiting_of(slots, epoch_of(generation_.number), [this](int slot) { return declared(slot); });
}

std::vector<bool> Leader::standing_by(const std::vector<int>& slots) {
  return actors::standing_by(slots, [this](int slot) { return declared(slot); });
}

bool Leader::stood_by(int slot) {
  return declared(slot).has_value();
}

void Leader::lost_spare(const actors::SpareLost& lost) {
  terminal_.say(fmt::format(
      "spare {} ended: {}; {}", lost.slot, to_string(lost.status),
      !lost.stood_by          ? "it never stood by, so no other is started: only a trainer whose process can "
                                "stay (ProcessWorldOptions::stays) can be a spare"
      : lost.is_started_again ? fmt::format("another is started: restart {} of {}",
                                            agent_->machine().restarts(), job_.options.max_restarts)
                              : "no restart is left for another (--max-restarts)"));
}

void Leader::stopped_while_forming() {
  const std::string why = "the job was stopped while its ranks formed another epoch";
  local_.write_failure(why);
  tell_all(Failed{generation_.number, why, ""});
}

std::optional<std::int64_t> Leader::committed_step() {
  std::ifstream file(progress_file(job_));
  std::int64_t step = -1;
  if (!(file >> step)) step = -1;
  for (const Node& node : nodes_) step = std::max(step, node.step);
  return step < 0 ? std::nullopt : std::optional(step);
}

void Leader::withheld(int slot, int signal) {
  local_.withheld(own_slot(slot), signal);
}

void Leader::woken(int slot) {
  local_.woken(own_slot(slot));
}

void Leader::failed(int rank, ExitStatus status) {
  const std::string name = name_of_rank(rank, host_of(rank));
  say_failure(status.code == actors::kExitFenced
                  ? fmt::format("{} ended because another rank did ({})", name, to_string(status))
                  : fmt::format("{} failed: {}", name, to_string(status)));
}

void Leader::say_failure(const std::string& failure) {
  local_.write_failure(failure);
  const std::string line = failure + (job_.place.world > 1 ? "; stopping the others" : "");
  terminal_.say(line);
  tell_all(Failed{generation_.number, failure, line});
}

void Leader::ended(const actors::EndGeneration& end) {
  local_.clear_away();
  report_.cause = end.cause;
  report_.ranks.clear();
  for (const actors::Ending& ending : end.endings) report_.ranks.push_back(report_of(ending));
  const auto lines = describe(report_);
  for (const std::string& line : lines) terminal_.say(line);
  tell_all(Ended{generation_.number, lines});
  if (agent_->machine().state() == "waiting") say_who_is_awaited();
}

RankReport Leader::report_of(const actors::Ending& ending) {
  // What is known of the process by its slot may concern its successor.
  for (const RankReport& each : replaced_) {
    if (each.ending.generation == ending.generation && each.ending.rank == ending.rank) return each;
  }
  const int node = node_of(ending.slot);
  if (node == 0) return local_.report(own_slot(ending.slot), ending);
  RankReport report{ending, member(node).hello.host, 0, {}, {}, {}};
  const Node& remote = nodes_[node];
  if (ending.kind == actors::Ending::Kind::lost) {
    report.meaning = fmt::format("the launcher of {} at {} was lost: {}", name_of(member(node)),
                                 member(node).address, remote.lost_because);
    return report;
  }
  const auto exit = remote.exits.find(own_slot(ending.slot));
  if (exit == remote.exits.end()) return report;
  report.pid = exit->second.pid;
  report.last_error_lines = exit->second.last_lines;
  report.error_message = exit->second.error;
  report.meaning = exit->second.meaning;
  return report;
}

void Leader::say_who_is_awaited() {
  for (int node = 1; node < job_.place.nodes; ++node) {
    if (nodes_[node].link) continue;
    const std::string line = fmt::format("waiting for at most {} for {} to come back",
                                         in_seconds(job_.meeting.patience), name_of(member(node)));
    terminal_.say(line);
    tell_all(Notice{line});
  }
}

void Leader::finished(int exit_code) {
  exit_code_ = exit_code;
  is_over_ = true;
  const auto& agent = agent_->machine();
  if (exit_code != 0) {
    last_line_ = fmt::format("job {} ends with exit code {}: {}", job_.id, exit_code, agent.verdict());
  }
  if (is_alone()) return loop_.stop();
  std::string report = to_json(job_, {exit_code, agent.verdict(), agent.restarts(), report_});
  // The report of a job with very many ranks is on node 0 only.
  if (report.size() > actors::SealedFrames::kMostBytes / 4) report.clear();
  tell_all(JobOver{exit_code, last_line_, report});
  close_links();
}

}  // namespace troupe::apps
