#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "actors/world/own_address.hpp"
#include "apps/troupe/launch/nodes/leader.hpp"
#include "core/errors.hpp"

// The part of the Leader that deals with the launchers of other nodes: how they come, speak and are lost.

namespace troupe::apps {

void Leader::start(Lobby& lobby, const actors::JobToken& secret, Hello own, std::optional<Journal> journal) {
  journal_ = std::move(journal);
  if (actors::is_loopback(job_.meeting.host)) own_secret_ = actors::to_hex(secret);
  if (journal_ && journal_->before())
    terminal_.say(fmt::format("the launcher of node 0 was lost in generation {}; its job goes on here",
                              journal_->before()->generation));
  const auto& meeting = job_.meeting;
  admission_.emplace(actors::NodeAdmission::Terms{job_.id, meeting.nodes, meeting.fewest_nodes,
                                                  meeting.heartbeat.patience + meeting.heartbeat.interval},
                     std::move(own), meeting.host, journal_ ? journal_->before() : std::nullopt);
  patience_ = clock_.arm(meeting.patience, [this] {
    give_up(1, fmt::format("not all nodes came within {:.3g} s: {}",
                           std::chrono::duration<double>(job_.meeting.patience).count(), table().waiting()));
  });
  lobby.start(
      secret, [this](const std::shared_ptr<NodeLink>& link, const Hello& hello) { came(link, hello); },
      [this](const std::string& line) { terminal_.say(line); });
  say_who_is_missing();
  call_for_the_last();
}

/// Where enough are there, those that may come have some time left.
void Leader::call_for_the_last() {
  clock_.cancel(std::exchange(last_call_, 0));
  if (table().is_enough()) last_call_ = clock_.arm(job_.meeting.last_call, [this] { all_are_here(); });
}

void Leader::say_who_is_missing() {
  const std::string line =
      fmt::format("job {}: {}, at {}:{}", job_.id, table().waiting(), job_.meeting.host, job_.meeting.port);
  terminal_.say(fmt::format("{}{}", line,
                            actors::is_loopback(job_.meeting.host)
                                ? " (of this host only; --rdzv-endpoint names an address for others)"
                                : ""));
  for (const auto& [id, guest] : guests_) guest->send(Notice{line});
}

void Leader::came(const std::shared_ptr<NodeLink>& link, const Hello& hello) {
  if (is_over_) return refuse(link, "the job is over", false);
  auto answer = admission_->admit(hello, link->peer_address(), clock_.now());
  if (const auto* again = std::get_if<actors::NodeAdmission::Reconnected>(&answer)) {
    nodes_[again->node].link->close();
    lose(again->node, "it has connected anew");
    if (is_over_) return refuse(link, "the job is over", false);
    answer = admission_->admit(hello, link->peer_address(), clock_.now());
  }
  if (const auto* refusal = std::get_if<actors::NodeAdmission::Refusal>(&answer)) {
    refuse(link, refusal->reason, refusal->may_try_again);
  } else if (const auto* guest = std::get_if<actors::NodeAdmission::Guest>(&answer)) {
    take_in(guest->id, link, hello.host);
  } else if (const auto* joined = std::get_if<actors::NodeAdmission::Joined>(&answer)) {
    take_back(*joined, link);
  }
}

void Leader::take_in(int id, const std::shared_ptr<NodeLink>& link, const std::string& host) {
  guests_[id] = link;
  link->set_handlers({.met = {},
                      .message = [](const NodeMessage&) {},
                      .lost =
                          [this, id, host](const std::string& reason) {
                            guests_.erase(id);
                            admission_->leave(id);
                            terminal_.say(fmt::format("{} has left: {}", host, reason));
                            say_who_is_missing();
                            call_for_the_last();
                          }});
  if (admission_->are_all_here()) return all_are_here();
  say_who_is_missing();
  call_for_the_last();
}

void Leader::refuse(const std::shared_ptr<NodeLink>& link, const std::string& reason, bool may_try_again) {
  if (!may_try_again)
    terminal_.say(fmt::format("refused the launcher at {}: {}", link->peer_address(), reason));
  link->send(Refused{reason, may_try_again});
  link->close_when_taken([] {});
}

/// The address at which the others reach this host, for rank 0 to listen at.
void Leader::choose_address() {
  if (!job_.master_addr.empty()) return;
  job_.master_addr = job_.meeting.host;
  for (const auto& [id, guest] : guests_) {
    if (!actors::is_loopback(guest->own_address())) {
      job_.master_addr = guest->own_address();
      return;
    }
  }
}

Welcome Leader::welcome_of(int node) const {
  return {job_.id,
          node,
          job_.place.nodes,
          member(node).first_slot,
          job_.place.world,
          job_.keeps_processes,
          journal_.has_value(),
          job_.options.max_restarts,
          job_.options.term_timeout_seconds,
          fmt::format("job {}: {}", job_.id, summary())};
}

void Leader::all_are_here() {
  clock_.cancel(std::exchange(patience_, 0));
  clock_.cancel(std::exchange(last_call_, 0));
  choose_address();
  std::map<int, std::shared_ptr<NodeLink>> guests = std::exchange(guests_, {});
  admission_->begin();
  job_.place = {0, table().size(), 0, table().world()};
  job_.keeps_processes =
      job_.options.recovery == "in-place" && admission_->can_mend(job_.options.max_restarts);
  nodes_.resize(static_cast<std::size_t>(job_.place.nodes));
  terminal_.say(fmt::format("job {}: {}{}", job_.id, summary(),
                            job_.directory_is_temporary ? "" : "; logs in " + job_.directory.string()));
  for (const auto& each : table().members()) {
    if (each.id != 0) attach(each.node, guests.at(each.id));
  }
  for (const std::string& difference : table().differences()) {
    terminal_.say("warning: " + difference);
    tell_all(Notice{"warning: " + difference});
  }
  start_agent();
}

void Leader::attach(int node, const std::shared_ptr<NodeLink>& link) {
  nodes_[node].link = link;
  nodes_[node].free_ports = member(node).hello.free_ports;
  link->set_handlers({.met = {},
                      .message = [this, node](NodeMessage message) { receive(node, std::move(message)); },
                      .lost = [this, node](const std::string& reason) { lose(node, reason); }});
  link->send(welcome_of(node));
}

/// A launcher that comes while the job runs.
void Leader::take_back(const actors::NodeAdmission::Joined& joined, const std::shared_ptr<NodeLink>& link) {
  const auto& hello = member(joined.node).hello;
  if (joined.is_new) {
    nodes_.emplace_back();
    job_.place.nodes = table().size();
    terminal_.say(
        fmt::format("{} at {} comes to the job, as node {}", hello.host, link->peer_address(), joined.node));
  } else {
    terminal_.say(fmt::format("{} at {} is back", name_of(member(joined.node)), link->peer_address()));
  }
  attach(joined.node, link);
  send_generation(nodes_[joined.node], true, {});
  joined.is_new ? agent_->node_added({hello.ranks, hello.spares}) : agent_->node_ready(joined.node);
}

void Leader::receive(int node, NodeMessage message) {
  if (const auto* exited = std::get_if<Exited>(&message)) {
    on(node, *exited);
  } else if (const auto* absent = std::get_if<NotStarted>(&message)) {
    on(node, *absent);
  } else if (const auto* got = std::get_if<Signalled>(&message)) {
    if (!is_over_) on(node, *got);
  } else if (const auto* members = std::get_if<Members>(&message)) {
    on(node, *members);
  } else if (const auto* port = std::get_if<FreePort>(&message)) {
    nodes_[node].free_ports.push_back(port->number);
  } else if (const auto* cleared = std::get_if<Cleared>(&message)) {
    if (cleared->generation == generation_.number) agent_->node_ready(node);
  }
}

void Leader::on(int node, const Exited& exited) {
  Node& remote = nodes_[node];
  const auto found = remote.processes.find(exited.slot);
  if (found == remote.processes.end() || found->second.generation != exited.generation) return;
  remote.exits[exited.slot] = exited;
  const auto tell = std::move(found->second.exited);
  remote.processes.erase(found);
  tell({exited.code, exited.signal});
}

void Leader::on(int node, const NotStarted& message) {
  Node& remote = nodes_[node];
  const auto found = remote.processes.find(message.slot);
  if (found == remote.processes.end() || found->second.generation != message.generation) return;
  remote.processes.erase(found);
  agent_->start_failed(member(node).first_slot + message.slot, {core::Errc::io, message.error});
}

void Leader::on(int node, const Members& message) {
  Node& remote = nodes_[node];
  const auto count = std::min({message.slots.size(), message.epochs.size(), message.states.size()});
  for (std::size_t i = 0; i < count; ++i)
    remote.members[message.slots[i]] = {core::Epoch{message.epochs[i]},
                                        static_cast<actors::Membership::State>(message.states[i])};
  remote.step = std::max(remote.step, message.step);
}

void Leader::lose(int node, const std::string& reason) {
  Node& remote = nodes_[node];
  remote.link.reset();
  remote.lost_because = reason;
  remote.processes.clear();
  remote.members.clear();
  remote.free_ports.clear();
  admission_->lose(node);
  if (!is_over_) agent_->node_lost(node);
}

void Leader::node_gone(int node, bool ends_others) {
  const auto& of = member(node);
  const std::string failure =
      fmt::format("{} at {} was lost: {}", name_of(of), of.address, nodes_[node].lost_because);
  if (ends_others) return say_failure(failure);
  terminal_.say(failure);
  tell_all(Notice{failure});
}

/// So that another launcher can go on from here.
void Leader::note_job(int generation) {
  if (!journal_) return;
  const JobRecord job{job_.id, own_secret_, table().members().front().hello.program, 0, 0, {}, {}, {}};
  const auto noted = journal_->write(admission_->record(job, generation, agent_->machine()));
  if (!noted) terminal_.say("warning: " + noted.error().message);
}

void Leader::tell_all(const NodeMessage& message) {
  for (const Node& node : nodes_) {
    if (node.link) node.link->send(message);
  }
}

void Leader::give_up(int exit_code, const std::string& why) {
  clock_.cancel(std::exchange(patience_, 0));
  clock_.cancel(std::exchange(last_call_, 0));
  exit_code_ = exit_code;
  is_over_ = true;
  last_line_ = fmt::format("job {} ends with exit code {}: {}", job_.id, exit_code, why);
  nodes_.resize(1);
  for (auto& [id, guest] : std::exchange(guests_, {})) {
    guest->send(JobOver{exit_code, last_line_, ""});
    nodes_.emplace_back().link = guest;
  }
  close_links();
}

/// Ends the loop when all launchers have taken what was sent to them.
void Leader::close_links() {
  const auto open = std::make_shared<int>(1);
  const auto closed = [this, open] {
    if (--*open == 0) loop_.stop();
  };
  for (Node& node : nodes_) {
    if (!node.link) continue;
    ++*open;
    node.link->close_when_taken(closed);
  }
  closed();
}

const actors::NodeTable::Member& Leader::member(int node) const {
  return table().members()[node];
}

std::string Leader::host_of(int rank) const {
  const auto& slots = agent_->machine().slots();
  const auto place = static_cast<std::size_t>(rank);
  return is_alone() || place >= slots.size() ? "" : member(node_of(slots[place])).hello.host;
}

}  // namespace troupe::apps
