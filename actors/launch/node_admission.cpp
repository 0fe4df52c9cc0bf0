#include "actors/launch/node_admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

NodeAdmission::NodeAdmission(Terms terms, LauncherHello own, std::string address,
                             std::optional<JobRecord> before)
    : terms_(std::move(terms)),
      table_(terms_.nodes, terms_.fewest_nodes, std::move(own), std::move(address)),
      before_(std::move(before)) {}

NodeAdmission::Answer NodeAdmission::admit(LauncherHello hello, const std::string& address,
                                           std::chrono::nanoseconds now) {
  if (!hello.job.empty() && hello.job != terms_.job)
    return Refusal{fmt::format("here is another job, {}", terms_.job)};
  const auto instance = hello.instance;
  auto answer =
      has_begun_ ? take_back(std::move(hello), address, now) : take_in(std::move(hello), address, now);
  if (!std::holds_alternative<Refusal>(answer)) too_many_.erase(instance);
  return answer;
}

NodeAdmission::Answer NodeAdmission::take_in(LauncherHello hello, const std::string& address,
                                             std::chrono::nanoseconds now) {
  const auto instance = hello.instance;
  const auto id = table_.add(std::move(hello), address);
  if (id) return Guest{*id};
  const bool is_taken = id.error().code == core::Errc::already_exists;
  return Refusal{id.error().message, is_taken && may_be_free_soon(instance, now)};
}

/// It may be there for one whose loss is not noticed yet.
bool NodeAdmission::may_be_free_soon(const std::string& instance, std::chrono::nanoseconds now) {
  constexpr std::chrono::nanoseconds kMostBetween = std::chrono::seconds(1);
  auto& wait = too_many_.try_emplace(instance, Wait{now}).first->second;
  wait.seen += std::min(now - wait.last_seen, kMostBetween);
  wait.last_seen = now;
  return wait.seen < terms_.loss_noticed;
}

bool NodeAdmission::are_all_here() const {
  return table_.is_complete() || (before_ && table_.size() == static_cast<int>(before_->ranks.size()));
}

void NodeAdmission::begin() {
  table_.assign();
  has_begun_ = true;
  is_present_.assign(static_cast<std::size_t>(table_.size()), true);
}

/// The place of a lost node as large as this one, otherwise of any lost one; -1: all are here.
int NodeAdmission::place_for(const LauncherHello& hello) const {
  int found = -1;
  for (int each = table_.size(); --each > 0;) {
    if (is_here(each)) continue;
    if (found < 0 || table_.check_return(each, hello) || !table_.check_return(found, hello)) found = each;
  }
  return found;
}

/// A launcher that comes while the job runs: one that was lost, or one in its place.
NodeAdmission::Answer NodeAdmission::take_back(LauncherHello hello, const std::string& address,
                                               std::chrono::nanoseconds now) {
  // A launcher's number is the one that it got, unless another has got it since then; where nodes come and
  // go, also if it was started as this node.
  int node = hello.node;
  const auto is_of_another = [&] {
    return node > 0 && node < table_.size() && is_here(node) && member(node).hello.instance != hello.instance;
  };
  if (table_.may_change() && hello.job.empty()) node = -1;
  if ((table_.may_change() || !hello.is_numbered) && is_of_another()) node = -1;
  if (node < 0) node = place_for(hello);
  const bool is_known = node > 0 && node < table_.size();
  if (!is_known && table_.may_change() && !table_.is_complete()) {
    const auto added = table_.add(std::move(hello), address);
    if (!added) return Refusal{added.error().message};
    table_.assign();
    is_present_.push_back(true);
    return Joined{table_.size() - 1, true};
  }
  if (!is_known) {
    return Refusal{fmt::format("{} comes too late or is one too many: the job runs on its {} nodes, {}",
                               hello.host, table_.size(), table_.present()),
                   may_be_free_soon(hello.instance, now)};
  }
  if (is_here(node) && member(node).hello.instance == hello.instance) return Reconnected{node};
  if (is_here(node))
    return Refusal{fmt::format("{} at {} is node {}", member(node).hello.host, member(node).address, node),
                   true};
  const auto fits = table_.check_return(node, hello);
  if (!fits) return Refusal{fits.error().message};
  if (node != hello.node) {  // what it has kept belongs to another node
    hello.running.clear();
    hello.started.clear();
  }
  table_.replace(node, std::move(hello), address);
  is_present_[node] = true;
  return Joined{node};
}

bool NodeAdmission::can_mend(int max_restarts) const {
  const auto has_spares = [](const auto& each) { return each.hello.spares > 0; };
  return max_restarts > 0 || table_.may_change() || table_.fewest_ranks() < table_.world() ||
         std::ranges::any_of(table_.members(), has_spares);
}

NodeAgentConfig NodeAdmission::agent_config(NodeAgentConfig config) const {
  config.ranks = table_.world();
  config.nodes = table_.size();
  config.fewest_nodes = terms_.fewest_nodes;
  config.fewest_ranks = table_.fewest_ranks();
  config.shares.clear();
  for (const auto& each : table_.members()) config.shares.push_back({each.hello.ranks, each.hello.spares});
  if (before_) {
    config.first_generation = before_->generation + 1;
    config.restarts_before = before_->restarts;
  }
  return config;
}

std::optional<Adopted> NodeAdmission::adopted() const {
  if (!before_ || table_.members().size() != before_->ranks.size()) return std::nullopt;
  Adopted found{before_->generation, before_->slots, {}};
  for (std::size_t node = 0; node < before_->ranks.size(); ++node) {
    const auto& [id, hello, address, number, first_slot] = table_.members()[node];
    const bool is_same = hello.ranks == before_->ranks[node] && hello.spares == before_->spares[node];
    const bool has_kept = hello.node == static_cast<int>(node) && !hello.running.empty();
    if (!is_same || (node > 0 && !has_kept)) return std::nullopt;
    for (const int slot : hello.running) found.running.insert(first_slot + slot);
  }
  return found;
}

JobRecord NodeAdmission::record(JobRecord record, int generation, const NodeAgentMachine& agent) const {
  record.generation = generation;
  record.restarts = agent.restarts();
  record.slots = agent.slots();
  record.ranks.clear();
  record.spares.clear();
  for (const auto& each : table_.members()) {
    record.ranks.push_back(each.hello.ranks);
    record.spares.push_back(each.hello.spares);
  }
  return record;
}

}  // namespace troupe::actors
