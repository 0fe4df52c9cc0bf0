#include "actors/launch/node_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

constexpr int kMostRanksOfNode = 1 << 16;

/// In these all launchers must agree, since each acts on them alone. For the others node 0's count.
constexpr const char* kDecisive[] = {"--nnodes", "--rdzv-id"};

std::string value_of(const LauncherHello& hello, const std::string& flag) {
  const auto found = hello.settings.find(flag);
  return found == hello.settings.end() ? "(none)" : found->second;
}

/// The first word in which the commands differ.
std::string difference_of_commands(const LauncherHello& own, const LauncherHello& other) {
  const std::size_t common = std::min(own.program.size(), other.program.size());
  std::size_t at = 0;
  while (at < common && own.program[at] == other.program[at]) ++at;
  if (at == own.program.size() && at == other.program.size()) return {};
  const auto word = [&](const LauncherHello& hello) {
    return at < hello.program.size() ? core::quoted_excerpt(hello.program[at]) : std::string("nothing");
  };
  return fmt::format("{} where node 0 has {}, as word {} of its command", word(other), word(own), at + 1);
}

}  // namespace

std::string name_of(const NodeTable::Member& member) {
  return member.node < 0 ? member.hello.host : fmt::format("{} (node {})", member.hello.host, member.node);
}

NodeTable::NodeTable(int nodes, int fewest, LauncherHello own, std::string address)
    : nodes_(nodes), fewest_(fewest) {
  own.node = 0;
  members_.push_back({0, std::move(own), std::move(address), 0, 0});
}

Result<void> NodeTable::check(const LauncherHello& hello, const std::string& address) const {
  const Member& own = members_.front();
  if (hello.version != own.hello.version) {
    return core::fail(Errc::mismatch, "{} runs troupe {}, and {} {}; install one version on all nodes",
                      hello.host, hello.version, name_of(own), own.hello.version);
  }
  for (const char* flag : kDecisive) {
    if (value_of(hello, flag) == value_of(own.hello, flag)) continue;
    return core::fail(Errc::mismatch, "{} was started with {} {}, and {} with {} {}; give all the same",
                      hello.host, flag, value_of(hello, flag), name_of(own), flag, value_of(own.hello, flag));
  }
  if (hello.ranks < 1 || hello.ranks > kMostRanksOfNode) {
    return core::fail(Errc::invalid_argument, "{} has {} ranks; a node has 1 to {}", hello.host, hello.ranks,
                      kMostRanksOfNode);
  }
  const auto is_own_slot = [&](int slot) { return slot >= 0 && slot < hello.ranks + hello.spares; };
  if (hello.running.size() != hello.started.size() || !std::ranges::all_of(hello.running, is_own_slot))
    return core::fail(Errc::corrupt, "{} names processes that it does not have", hello.host);
  if (hello.node >= nodes_) {
    return core::fail(Errc::invalid_argument, "--node-rank {} of {}: {} nodes have node ranks 0 to {}",
                      hello.node, hello.host, nodes_, nodes_ - 1);
  }
  for (const Member& member : members_) {
    if (hello.node < 0 || member.node != hello.node) continue;
    return core::fail(
        Errc::already_exists,
        "--node-rank {} of {} at {}: {} at {} has it; give each launcher a node rank of its own, "
        "or none",
        hello.node, hello.host, address, member.hello.host, member.address);
  }
  if (is_complete()) {
    return core::fail(Errc::already_exists, "{} is one too many: the job has its {} nodes, {}", hello.host,
                      nodes_, present());
  }
  return {};
}

Result<int> NodeTable::add(LauncherHello hello, std::string address) {
  const auto has_it = [&](const Member& member) { return member.node == hello.node; };
  if (may_change() && (hello.job.empty() || std::ranges::any_of(members_, has_it))) hello.node = -1;
  TRY(check(hello, address));
  const int node = hello.node;
  members_.push_back({next_id_, std::move(hello), std::move(address), node, 0});
  return next_id_++;
}

void NodeTable::remove(int id) {
  std::erase_if(members_.items(), [&](const Member& member) { return member.id == id; });
}

void NodeTable::assign() {
  std::set<int> taken;
  for (const Member& member : members_) taken.insert(member.node);
  int next = 0;
  for (Member& member : members_) {
    if (member.node >= 0) continue;
    while (taken.contains(next)) ++next;
    member.node = next++;
  }
  std::ranges::sort(members_, {}, &Member::node);
  int slot = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    // Some of the nodes that a job had before may not have come.
    if (may_change()) member.node = static_cast<int>(i);
    member.first_slot = std::exchange(slot, slot + member.hello.ranks + member.hello.spares);
  }
}

int NodeTable::world() const {
  int ranks = 0;
  for (const Member& member : members_) ranks += member.hello.ranks;
  return ranks;
}

int NodeTable::fewest_ranks() const {
  std::vector<int> fewest;
  for (const Member& member : members_) fewest.push_back(member.hello.fewest_ranks);
  std::ranges::sort(fewest);
  fewest.resize(static_cast<std::size_t>(std::min(fewest_, size())));
  return std::accumulate(fewest.begin(), fewest.end(), 0);
}

Result<void> NodeTable::check_return(int node, const LauncherHello& hello) const {
  const Member& lost = members_[node];
  const auto size_of = [](const LauncherHello& of) {
    return fmt::format("{} ranks, {} spares", of.ranks, of.spares);
  };
  if (size_of(hello) == size_of(lost.hello) && hello.version == lost.hello.version) return {};
  return core::fail(Errc::mismatch, "{} has {} and troupe {}; {}, which it replaces, had {} and {}",
                    hello.host, size_of(hello), hello.version, name_of(lost), size_of(lost.hello),
                    lost.hello.version);
}

void NodeTable::replace(int node, LauncherHello hello, std::string address) {
  Member& member = members_[node];
  member.hello = std::move(hello);
  member.address = std::move(address);
}

std::string NodeTable::present() const {
  std::vector<std::string> names;
  for (const Member& member : members_) names.push_back(name_of(member));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string NodeTable::waiting() const {
  if (is_enough()) {
    return fmt::format("waiting for up to {} more of {} nodes; here {} {}", nodes_ - size(), nodes_,
                       size() == 1 ? "is" : "are", present());
  }
  return fmt::format("waiting for {} of {} nodes; here {} {}", fewest_ - size(), fewest_,
                     members_.size() == 1 ? "is" : "are", present());
}

std::vector<std::string> NodeTable::differences() const {
  std::vector<std::string> lines;
  const LauncherHello& own = members_.front().hello;
  for (const Member& member : members_) {
    const std::string command = difference_of_commands(own, member.hello);
    if (!command.empty()) lines.push_back(fmt::format("{} has {}", name_of(member), command));
    for (const auto& [flag, value] : own.settings) {
      if (value_of(member.hello, flag) == value) continue;
      lines.push_back(fmt::format("{} was started with {} {}, and node 0 with {}, which counts",
                                  name_of(member), flag, value_of(member.hello, flag), value));
    }
  }
  return lines;
}

}  // namespace troupe::actors
