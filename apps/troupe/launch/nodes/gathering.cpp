#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <variant>

#include "actors/world/own_address.hpp"
#include "apps/troupe/launch/nodes/leader.hpp"
#include "core/errors.hpp"

// The part of the Leader that deals with the launchers of other nodes: how they come, speak and are lost.

namespace troupe::apps {

void Leader::start(Lobby& lobby, const actors::JobToken& secret, Hello own) {
  table_.emplace(job_.meeting.nodes, std::move(own), job_.meeting.host);
  patience_ = clock_.arm(job_.meeting.patience, [this] {
    give_up(1, fmt::format("not all nodes came within {:.3g} s: {}",
                           std::chrono::duration<double>(job_.meeting.patience).count(), table_->waiting()));
  });
  lobby.start(
      secret,
      [this](std::shared_ptr<NodeLink> link, Hello hello) {
        if (is_over_) return refuse(link, "the job is over", false);
        if (!hello.job.empty() && hello.job != job_.id) {
          return refuse(link, fmt::format("here is another job, {}", job_.id), false);
        }
        agent_ ? take_back(link, std::move(hello)) : take_in(link, std::move(hello));
      },
      [this](const std::string& line) { terminal_.say(line); });
  say_who_is_missing();
}

void Leader::say_who_is_missing() {
  const std::string line =
      fmt::format("job {}: {}, at {}:{}", job_.id, table_->waiting(), job_.meeting.host, job_.meeting.port);
  terminal_.say(fmt::format("{}{}", line,
                            actors::is_loopback(job_.meeting.host)
                                ? " (of this host only; --rdzv-endpoint names an address for others)"
                                : ""));
  for (const auto& [id, guest] : guests_) guest->send(Notice{line});
}

void Leader::take_in(const std::shared_ptr<NodeLink>& link, Hello hello) {
  const std::string host = hello.host;
  const auto id = table_->add(std::move(hello), link->peer_address());
  if (!id) return refuse(link, id.error().message, false);
  guests_[*id] = link;
  link->set_handlers({.met = {},
                      .message = [](const NodeMessage&) {},
                      .lost =
                          [this, id = *id, host](const std::string& reason) {
                            guests_.erase(id);
                            table_->remove(id);
                            terminal_.say(fmt::format("{} has left: {}", host, reason));
                            say_who_is_missing();
                          }});
  if (!table_->is_complete()) return say_who_is_missing();
  all_are_here();
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
          member(node).first_rank,
          job_.place.world,
          job_.options.max_restarts,
          job_.options.term_timeout_seconds,
          fmt::format("job {}: {}", job_.id, summary())};
}

void Leader::all_are_here() {
  clock_.cancel(std::exchange(patience_, 0));
  choose_address();
  std::map<int, std::shared_ptr<NodeLink>> guests = std::exchange(guests_, {});
  table_->assign();
  job_.place = {0, job_.meeting.nodes, 0, table_->world()};
  nodes_.resize(static_cast<std::size_t>(job_.place.nodes));
  terminal_.say(fmt::format("job {}: {}{}", job_.id, summary(),
                            job_.directory_is_temporary ? "" : "; logs in " + job_.directory.string()));
  for (const auto& each : table_->members()) {
    if (each.id != 0) attach(each.node, guests.at(each.id));
  }
  for (const std::string& difference : table_->differences()) {
    terminal_.say("warning: " + difference);
    tell_all(Notice{"warning: " + difference});
  }
  start_agent();
}

void Leader::attach(int node, const std::shared_ptr<NodeLink>& link) {
  nodes_[static_cast<std::size_t>(node)].link = link;
  link->set_handlers({.met = {},
                      .message = [this, node](NodeMessage message) { receive(node, std::move(message)); },
                      .lost = [this, node](const std::string& reason) { lose(node, reason); }});
  link->send(welcome_of(node));
}

/// A launcher that comes while the job runs: one that was lost, or one in its place.
void Leader::take_back(const std::shared_ptr<NodeLink>& link, Hello hello) {
  int node = hello.node;
  for (int each = 1; node < 0 && each < job_.place.nodes; ++each) {
    if (!nodes_[static_cast<std::size_t>(each)].link) node = each;
  }
  if (node <= 0 || node >= job_.place.nodes) {
    return refuse(link,
                  fmt::format("{} comes too late or is one too many: the job runs on its {} nodes, {}",
                              hello.host, job_.place.nodes, table_->present()),
                  false);
  }
  if (nodes_[static_cast<std::size_t>(node)].link) {
    const bool is_itself = member(node).hello.instance == hello.instance;
    if (!is_itself) {
      return refuse(link,
                    fmt::format("{} at {} is node {}", member(node).hello.host, member(node).address, node),
                    true);
    }
    nodes_[static_cast<std::size_t>(node)].link->close();
    lose(node, "it has connected anew");
    if (is_over_) return refuse(link, "the job is over", false);
  }
  const auto fits = table_->check_return(node, hello);
  if (!fits) return refuse(link, fits.error().message, false);
  table_->replace(node, std::move(hello), link->peer_address());
  terminal_.say(fmt::format("{} at {} is back", name_of(member(node)), link->peer_address()));
  attach(node, link);
  agent_->node_ready(node);
}

void Leader::receive(int node, NodeMessage message) {
  if (const auto* exited = std::get_if<Exited>(&message)) {
    on(node, *exited);
  } else if (const auto* absent = std::get_if<NotStarted>(&message)) {
    on(node, *absent);
  } else if (const auto* got = std::get_if<Signalled>(&message)) {
    if (!is_over_) on(node, *got);
  } else if (const auto* cleared = std::get_if<Cleared>(&message)) {
    if (cleared->generation == generation_.number) agent_->node_ready(node);
  }
}

void Leader::on(int node, const Exited& exited) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  const auto rank = static_cast<std::size_t>(exited.rank);
  if (exited.generation != generation_.number || exited.rank < 0 || rank >= remote.on_exit.size()) return;
  remote.exits[exited.rank] = exited;
  if (const auto tell = std::exchange(remote.on_exit[rank], nullptr)) tell({exited.code, exited.signal});
}

void Leader::on(int node, const NotStarted& message) {
  const auto& of = member(node);
  if (message.generation != generation_.number || message.rank < 0 || message.rank >= of.hello.ranks) return;
  agent_->start_failed(of.first_rank + message.rank, of.hello.ranks - message.rank,
                       {core::Errc::io, message.error});
}

void Leader::lose(int node, const std::string& reason) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  remote.link.reset();
  remote.lost_because = reason;
  if (is_over_) return;
  const auto& of = member(node);
  const std::string failure = fmt::format("{} at {} was lost: {}", name_of(of), of.address, reason);
  if (agent_->machine().state() == "watching") {
    say_failure(failure);
  } else {
    terminal_.say(failure);
  }
  for (auto& tell : remote.on_exit) tell = nullptr;
  agent_->node_lost(node, of.first_rank, of.hello.ranks);
}

void Leader::tell_all(const NodeMessage& message) {
  for (const Node& node : nodes_) {
    if (node.link) node.link->send(message);
  }
}

void Leader::give_up(int exit_code, const std::string& why) {
  clock_.cancel(std::exchange(patience_, 0));
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

const NodeTable::Member& Leader::member(int node) const {
  return table_->members()[static_cast<std::size_t>(node)];
}

std::string Leader::host_of(int rank) const {
  return is_alone() ? "" : member(table_->node_of_rank(rank)).hello.host;
}

}  // namespace troupe::apps
