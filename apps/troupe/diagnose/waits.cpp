#include "apps/troupe/diagnose/waits.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

namespace troupe::apps {

using core::Rank;
using gpu::FlightState;
using gpu::OperationKind;
using gpu::RecordedGroup;
using gpu::RecordedOperation;
using gpu::RecordedRank;

namespace {

/// What a record says may be anything; it is not to overflow.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

bool is_over(const RecordedOperation& operation) {
  return operation.state == FlightState::ended || operation.state == FlightState::failed;
}

template <class Act>
void for_each_operation(const RecordedRank& rank, Act act) {
  for (const RecordedGroup& group : rank.groups) {
    for (const RecordedOperation& operation : group.operations) act(group, operation);
  }
}

/// The part of a group that a rank is in, as another member knows it.
const RecordedGroup* find_group(const RecordedRank& rank, const RecordedGroup& alike) {
  for (const RecordedGroup& group : rank.groups) {
    if (group.name == alike.name && group.members == alike.members) return &group;
  }
  return nullptr;
}

/// Whether the operation of another member belongs to this one, which member `index` has posted.
bool is_counterpart(const RecordedOperation& own, int index, const RecordedOperation& other) {
  if (!own.is_message()) return !other.is_message() && own.sequence == other.sequence;
  const OperationKind opposite =
      own.kind == OperationKind::send ? OperationKind::receive : OperationKind::send;
  return other.kind == opposite && other.peer == index && other.sequence == own.sequence;
}

bool is_later(const RecordedOperation& own, int index, const RecordedOperation& other) {
  if (!own.is_message()) return !other.is_message() && other.sequence > own.sequence;
  return other.is_message() && other.kind != own.kind && other.peer == index && other.sequence > own.sequence;
}

}  // namespace

Times::Times(const Evidence& evidence)
    : looked_(evidence.looked_wall_ns), end_(std::numeric_limits<std::int64_t>::max()) {
  for (const auto& [record, process] : evidence.ranks)
    offsets_.try_emplace(record.host, difference(record.opened_wall_ns, record.opened_ns));
  for (const auto& [record, process] : evidence.ranks) {
    for_each_operation(record, [&](const RecordedGroup&, const RecordedOperation& operation) {
      if (operation.state != FlightState::failed) return;
      has_failed_ = true;
      end_ = std::min(end_, wall(record, operation.ended_ns));
    });
  }
}

std::int64_t Times::wall(const RecordedRank& rank, std::int64_t ns) const {
  return sum(ns, offsets_.at(rank.host));
}

double Times::seconds_since(const RecordedRank& rank, std::int64_t ns) const {
  return std::max(static_cast<double>(difference(looked_, wall(rank, ns))) * 1e-9, 0.0);
}

PlacedOperation Times::last_of(const RecordedRank& rank) const {
  PlacedOperation last;
  for_each_operation(rank, [&](const RecordedGroup& group, const RecordedOperation& operation) {
    if (is_late(rank, operation)) return;
    if (last.operation == nullptr || operation.posted_ns > last.operation->posted_ns)
      last = {&group, &operation};
  });
  return last;
}

PlacedOperation Times::oldest_open_of(const RecordedRank& rank) const {
  PlacedOperation open;
  PlacedOperation failed;
  for_each_operation(rank, [&](const RecordedGroup& group, const RecordedOperation& operation) {
    if (operation.state == FlightState::ended) return;
    PlacedOperation& found = is_over(operation) ? failed : open;
    if (found.operation == nullptr || operation.posted_ns < found.operation->posted_ns)
      found = {&group, &operation};
  });
  if (open.operation != nullptr) return open;
  return failed.operation != nullptr ? failed : last_of(rank);
}

Waits::Waits(const Evidence& evidence, const Times& times) : evidence_(evidence), times_(times) {
  find_suspects();
  for (const RankEvidence& rank : evidence.ranks) {
    for_each_operation(rank.record, [&](const RecordedGroup& group, const RecordedOperation& operation) {
      const bool was_in_it = operation.state == FlightState::launched ||
                             (operation.state == FlightState::failed && operation.launched_ns != 0);
      if (was_in_it && !times_.is_late(rank.record, operation)) add(rank, group, operation);
    });
  }
}

void Waits::find_suspects() {
  // Ranks that have failed in an operation, or have heard of the failure, may be gone for it; but for one
  // that gave up its own operation before any other failed.
  std::set<Rank> failed;
  const RankEvidence* first = nullptr;
  std::set<Rank> lost;
  for (const RankEvidence& rank : evidence_.ranks) {
    if (rank.record.failed_ns != 0) failed.insert(rank.record.rank);
    for_each_operation(rank.record, [&](const RecordedGroup&, const RecordedOperation& operation) {
      if (operation.state != FlightState::failed) return;
      failed.insert(rank.record.rank);
      if (operation.lost) lost.insert(*operation.lost);
      if (times_.wall(rank.record, operation.ended_ns) == times_.end() &&
          operation.code == core::Errc::aborted)
        first = &rank;
    });
  }
  if (first != nullptr && first->record.failed_ns == 0) failed.erase(first->record.rank);
  for (const RankEvidence& rank : evidence_.ranks) {
    const auto& record = rank.record;
    if (failed.contains(record.rank) || record.phase == gpu::FlightPhase::left) continue;
    const bool is_idle =
        rank.process && (rank.process->is_gone() || rank.process->state == ProcessFacts::State::stopped);
    if (is_idle || lost.contains(record.rank)) suspects_.insert(record.rank);
  }
}

void Waits::add(const RankEvidence& rank, const RecordedGroup& group, const RecordedOperation& operation) {
  Wait wait{.rank = rank.record.rank, .group = &group, .operation = &operation};
  wait.is_over = is_over(operation);
  wait.began = times_.wall(rank.record, operation.launched_ns);
  wait.ended = wait.is_over ? times_.wall(rank.record, operation.ended_ns)
                            : std::max(evidence_.looked_wall_ns, wait.began);
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (static_cast<int>(i) == group.index) continue;
    if (operation.is_message() && static_cast<int>(i) != operation.peer) continue;
    const Rank member = group.members[i];
    const Progress found = progress(member, wait);
    if (found == Progress::absent) wait.absent.push_back(member);
    if (found == Progress::inside) wait.inside.push_back(member);
  }
  if (!is_suspect(wait.rank)) waiting_.insert(wait.rank);
  all_.push_back(std::move(wait));
}

Waits::Progress Waits::progress(Rank member, const Wait& wait) const {
  const auto found =
      std::ranges::find(evidence_.ranks, member, [](const auto& each) { return each.record.rank; });
  if (found == evidence_.ranks.end()) return Progress::absent;
  const RecordedGroup* const group = find_group(found->record, *wait.group);
  if (group == nullptr) return Progress::absent;
  for (const RecordedOperation& operation : group->operations) {
    if (times_.is_late(found->record, operation)) continue;
    if (is_counterpart(*wait.operation, wait.group->index, operation))
      return operation.state == FlightState::ended ? Progress::through : Progress::inside;
    // Its entry is gone, since the member is that far ahead.
    if (is_later(*wait.operation, wait.group->index, operation)) return Progress::through;
  }
  return Progress::absent;
}

bool Waits::is_same(const Wait& one, const Wait& other) {
  if (&one == &other) return true;
  if (one.operation->is_message() || other.operation->is_message()) return false;
  return one.group->name == other.group->name && one.group->members == other.group->members &&
         one.operation->sequence == other.operation->sequence;
}

bool Waits::precedes(const Wait& first, const Wait& second) const {
  return std::ranges::any_of(all_, [&](const Wait& one) {
    return is_same(one, first) && std::ranges::any_of(all_, [&](const Wait& other) {
             return other.rank == one.rank && is_same(other, second) &&
                    one.operation->posted_ns < other.operation->posted_ns;
           });
  });
}

std::vector<Rank> Waits::waiting_in(const Wait& wait) const {
  std::set<Rank> ranks;
  for (const Wait& other : all_) {
    if (is_same(other, wait) && waits(other.rank)) ranks.insert(other.rank);
  }
  ranks.insert(wait.rank);
  return {ranks.begin(), ranks.end()};
}

std::vector<const Wait*> Waits::find_circle() const {
  std::vector<const Wait*> path;
  std::set<Rank> passed;
  // From rank to rank, depth first.
  const std::function<bool(Rank)> follow = [&](Rank rank) {
    const auto on_path = std::ranges::find(path, rank, [](const Wait* wait) { return wait->rank; });
    if (on_path != path.end()) {
      path.erase(path.begin(), on_path);
      return true;
    }
    if (!passed.insert(rank).second) return false;
    for (const Wait& wait : all_) {
      if (wait.rank != rank) continue;
      path.push_back(&wait);
      for (const Rank next : wait.absent) {
        if (waits(next) && follow(next)) return true;
      }
      path.pop_back();
    }
    return false;
  };
  for (const Wait& wait : all_) {
    if (waits(wait.rank) && follow(wait.rank)) return path;
  }
  return {};
}

}  // namespace troupe::apps
