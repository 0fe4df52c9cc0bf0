#include "core/program/job_slices.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace troupe::core {
namespace {

/// Finds which ranks are connected.
class Connected {
 public:
  explicit Connected(std::size_t ranks) : parents_(ranks) { std::iota(parents_.begin(), parents_.end(), 0); }

  std::size_t first_of(std::size_t rank) {
    while (parents_[rank] != rank) rank = parents_[rank] = parents_[parents_[rank]];
    return rank;
  }
  void join(std::size_t one, std::size_t other) {
    const auto left = first_of(one);
    const auto right = first_of(other);
    parents_[std::max(left, right)] = std::min(left, right);
  }

 private:
  std::vector<std::size_t> parents_;
};

/// The ranks of slices that no earlier one stands for.
std::vector<bool> chosen_ranks(const Mesh& mesh, const std::vector<const Program*>& programs) {
  Connected connected(programs.size());
  for (const auto kind : {GroupKind::tp, GroupKind::cp, GroupKind::pp, GroupKind::ep}) {
    for (const auto& members : mesh.groups(kind)) {
      for (const Rank rank : members)
        connected.join(static_cast<std::size_t>(members.front().value), static_cast<std::size_t>(rank.value));
    }
  }
  std::map<std::size_t, std::vector<const Program*>> slices;
  for (std::size_t rank = 0; rank < programs.size(); ++rank)
    slices[connected.first_of(rank)].push_back(programs[rank]);
  std::set<std::vector<const Program*>> seen;
  std::set<std::size_t> chosen;
  for (const auto& [first, slice] : slices) {
    if (seen.insert(slice).second) chosen.insert(first);
  }
  std::vector<bool> is_chosen(programs.size());
  for (std::size_t rank = 0; rank < programs.size(); ++rank)
    is_chosen[rank] = chosen.contains(connected.first_of(rank));
  return is_chosen;
}

}  // namespace

CheckedJob checked_slices(const Mesh& mesh, const std::vector<const Program*>& programs) {
  const auto is_chosen = chosen_ranks(mesh, programs);
  auto whole = checked_job(mesh, programs);
  CheckedJob job;
  std::vector<int> places(programs.size(), -1);
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    if (!is_chosen[rank]) continue;
    places[rank] = static_cast<int>(job.ranks.size());
    job.ranks.push_back(std::move(whole.ranks[rank]));
  }
  for (auto& group : whole.groups) {
    CheckedGroup part{group.kind, {}, group.size};
    for (const int rank : group.members) {
      if (const int place = places[static_cast<std::size_t>(rank)]; place >= 0) part.members.push_back(place);
    }
    if (!part.members.empty()) job.groups.push_back(std::move(part));
  }
  return job;
}

}  // namespace troupe::core
