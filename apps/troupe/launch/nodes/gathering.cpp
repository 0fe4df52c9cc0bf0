#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "actors/launch/standing.hpp"
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
  table_.emplace(job_.meeting.nodes, job_.meeting.fewest_nodes, std::move(own), job_.meeting.host);
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
  call_for_the_last();
}

/// Where enough are there, those that may come have some time left.
void Leader::call_for_the_last() {
  clock_.cancel(std::exchange(last_call_, 0));
  if (table_->is_enough()) last_call_ = clock_.arm(job_.meeting.last_call, [this] { all_are_here(); });
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
                            call_for_the_last();
                          }});
  const bool are_all_back =
      journal_ && journal_->before() && table_->size() == static_cast<int>(journal_->before()->ranks.size());
  if (table_->is_complete() || are_all_back) return all_are_here();
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
  table_->assign();
  job_.place = {0, table_->size(), 0, table_->world()};
  const auto has_spares = [](const auto& each) { return each.hello.spares > 0; };
  const bool can_mend = job_.options.max_restarts > 0 || table_->may_change() ||
                        table_->fewest_ranks() < table_->world() ||
                        std::ranges::any_of(table_->members(), has_spares);
  job_.keeps_processes = job_.options.recovery == "in-place" && can_mend;
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
  nodes_[static_cast<std::size_t>(node)].free_ports = member(node).hello.free_ports;
  link->set_handlers({.met = {},
                      .message = [this, node](NodeMessage message) { receive(node, std::move(message)); },
                      .lost = [this, node](const std::string& reason) { lose(node, reason); }});
  link->send(welcome_of(node));
}

/// A launcher that comes while the job runs: one that was lost, or one in its place.
void Leader::take_back(const std::shared_ptr<NodeLink>& link, Hello hello) {
  // Where nodes come and go, a launcher's number is the one that it got, unless another has got it since
  // then.
  int node = hello.node;
  const auto is_of_another = [&] {
    return node > 0 && node < job_.place.nodes && nodes_[static_cast<std::size_t>(node)].link &&
           member(node).hello.instance != hello.instance;
  };
  if (table_->may_change() && (hello.job.empty() || is_of_another())) node = -1;
  for (int each = 1; node < 0 && each < job_.place.nodes; ++each) {
    if (!nodes_[static_cast<std::size_t>(each)].link) node = each;
  }
  const bool is_known = node > 0 && node < job_.place.nodes;
  if (!is_known && table_->may_change() && !table_->is_complete()) return add(link, std::move(hello));
  if (!is_known) {
    // It may be there for one whose loss is not noticed yet.
    const auto& heartbeat = job_.meeting.heartbeat;
    const auto first = too_many_.try_emplace(hello.instance, clock_.now()).first->second;
    const bool may_try_again = clock_.now() < first + heartbeat.patience + heartbeat.interval;
    return refuse(link,
                  fmt::format("{} comes too late or is one too many: the job runs on its {} nodes, {}",
                              hello.host, job_.place.nodes, table_->present()),
                  may_try_again);
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
  send_generation(nodes_[static_cast<std::size_t>(node)], true, {});
  agent_->node_ready(node);
}

/// One that comes to a job that runs.
void Leader::add(const std::shared_ptr<NodeLink>& link, Hello hello) {
  const std::string host = hello.host;
  const auto added = table_->add(std::move(hello), link->peer_address());
  if (!added) return refuse(link, added.error().message, false);
  table_->assign();
  const int node = table_->size() - 1;
  job_.place.nodes = table_->size();
  nodes_.emplace_back();
  terminal_.say(fmt::format("{} at {} comes to the job, as node {}", host, link->peer_address(), node));
  attach(node, link);
  send_generation(nodes_.back(), true, {});
  agent_->node_added({member(node).hello.ranks, member(node).hello.spares});
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
    nodes_[static_cast<std::size_t>(node)].free_ports.push_back(port->number);
  } else if (const auto* cleared = std::get_if<Cleared>(&message)) {
    if (cleared->generation == generation_.number) agent_->node_ready(node);
  }
}

void Leader::on(int node, const Exited& exited) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  const auto found = remote.processes.find(exited.slot);
  if (found == remote.processes.end() || found->second.generation != exited.generation) return;
  remote.exits[exited.slot] = exited;
  const auto tell = std::move(found->second.exited);
  remote.processes.erase(found);
  tell({exited.code, exited.signal});
}

void Leader::on(int node, const NotStarted& message) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  const auto found = remote.processes.find(message.slot);
  if (found == remote.processes.end() || found->second.generation != message.generation) return;
  remote.processes.erase(found);
  agent_->start_failed(member(node).first_slot + message.slot, {core::Errc::io, message.error});
}

void Leader::on(int node, const Members& message) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  const auto count = std::min({message.slots.size(), message.epochs.size(), message.states.size()});
  for (std::size_t i = 0; i < count; ++i)
    remote.members[message.slots[i]] = {core::Epoch{message.epochs[i]},
                                        static_cast<actors::Membership::State>(message.states[i])};
  remote.step = std::max(remote.step, message.step);
}

void Leader::lose(int node, const std::string& reason) {
  Node& remote = nodes_[static_cast<std::size_t>(node)];
  remote.link.reset();
  remote.lost_because = reason;
  remote.processes.clear();
  remote.members.clear();
  remote.free_ports.clear();
  if (!is_over_) agent_->node_lost(node);
}

void Leader::node_gone(int node, bool ends_others) {
  const auto& of = member(node);
  const std::string failure = fmt::format("{} at {} was lost: {}", name_of(of), of.address,
                                          nodes_[static_cast<std::size_t>(node)].lost_because);
  if (ends_others) return say_failure(failure);
  terminal_.say(failure);
  tell_all(Notice{failure});
}

/// What goes on of the job of the launcher before this one.
std::optional<actors::Adopted> Leader::adopted() const {
  if (!journal_ || !journal_->before() || !job_.keeps_processes) return std::nullopt;
  const JobRecord& before = *journal_->before();
  actors::FormerJob former{before.generation, before.slots, {}};
  for (std::size_t node = 0; node < before.ranks.size(); ++node)
    former.shares.push_back({before.ranks[node], before.spares[node]});
  std::vector<actors::FoundNode> found;
  for (const auto& each : table_->members())
    found.push_back({{each.hello.ranks, each.hello.spares}, each.first_slot, each.hello.running});
  return actors::adoptable(former, found);
}

/// So that another launcher can go on from here.
void Leader::note_job(int generation) {
  if (!journal_) return;
  JobRecord record{job_.id,
                   own_secret_,
                   table_->members().front().hello.program,
                   generation,
                   agent_->machine().restarts(),
                   {},
                   {},
                   agent_->machine().slots()};
  for (const auto& each : table_->members()) {
    record.ranks.push_back(each.hello.ranks);
    record.spares.push_back(each.hello.spares);
  }
  const auto noted = journal_->write(record);
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

const NodeTable::Member& Leader::member(int node) const {
  return table_->members()[static_cast<std::size_t>(node)];
}

std::string Leader::host_of(int rank) const {
  const auto& slots = agent_->machine().slots();
  const auto place = static_cast<std::size_t>(rank);
  return is_alone() || place >= slots.size() ? "" : member(node_of(slots[place])).hello.host;
}

}  // namespace troupe::apps
