#include "core/checkpoint/cliques.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

std::vector<std::int32_t> numbers_of(const Clique& clique) {
  std::vector<std::int32_t> numbers;
  for (auto rank : clique) numbers.push_back(rank.value);
  return numbers;
}

const HeldCopy* find_copy(const Holdings& holdings, Rank holder, const CopyName& name, Rank owner) {
  const auto place = static_cast<std::size_t>(holder.value);
  if (place >= holdings.size()) return nullptr;
  for (const auto& copy : holdings[place]) {
    if (copy.name == name && copy.owner == owner && !copy.beside) return &copy;
  }
  return nullptr;
}

/// Members whose copies the clique lacks.
Clique uncovered(const CopyName& name, const Holdings& holdings, const Clique& clique) {
  Clique missing;
  for (auto owner : clique) {
    const bool held = std::any_of(clique.begin(), clique.end(), [&](Rank holder) {
      return find_copy(holdings, holder, name, owner) != nullptr;
    });
    if (!held) missing.push_back(owner);
  }
  return missing;
}

struct Held {
  Rank holder;
  const HeldCopy* copy;
};

std::vector<Held> copies_of(const CopyName& name, const Holdings& holdings) {
  std::vector<Held> copies;
  for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
    for (const auto& copy : holdings[rank]) {
      if (copy.name == name) copies.push_back({{static_cast<std::int32_t>(rank)}, &copy});
    }
  }
  return copies;
}

/// Whether the copies fit the ranks that have their owners' numbers now.
bool fit(const std::vector<Held>& copies, std::size_t world, std::span<const std::uint64_t> wants) {
  return std::all_of(copies.begin(), copies.end(), [&](const Held& held) {
    const auto owner = static_cast<std::size_t>(held.copy->owner.value);
    return static_cast<std::size_t>(held.copy->world.value) == world && owner < world &&
           (wants.empty() || held.copy->layout == wants[owner]);
  });
}

/// One copy of each owner; empty where one is missing, which is why if nothing else is.
std::vector<CopyGiver> givers_of(const std::vector<Held>& copies, std::string& why) {
  const auto world = copies.front().copy->world;
  std::map<Rank, std::vector<const Held*>> holders;
  for (const auto& held : copies) {
    if (held.copy->world == world) holders[held.copy->owner].push_back(&held);
  }
  std::map<Rank, std::uint64_t> given;
  std::vector<CopyGiver> givers;
  for (std::int32_t owner = 0; owner < world.value; ++owner) {
    const auto found = holders.find({owner});
    if (found == holders.end()) {
      if (why.empty())
        why = fmt::format("of its {} ranks, nobody holds a copy of rank {}", world.value, owner);
      return {};
    }
    const auto* held =
        *std::min_element(found->second.begin(), found->second.end(),
                          [&](const Held* a, const Held* b) { return given[a->holder] < given[b->holder]; });
    given[held->holder] += held->copy->bytes;
    givers.push_back({held->holder, held->copy->beside.value_or(held->holder), held->copy->layout});
  }
  return givers;
}

}  // namespace

Result<std::vector<Clique>> make_cliques(WorldSize world, int jump, int factor) {
  const auto span = static_cast<std::int64_t>(jump) * factor;
  if (jump <= 0 || factor <= 0 || world.value % span != 0) {
    return fail(Errc::invalid_argument,
                "cliques of {} ranks, {} apart, do not divide {} ranks evenly: both numbers must be positive "
                "and their product must divide the number of ranks",
                factor, jump, world.value);
  }
  std::vector<Clique> cliques;
  for (std::int32_t block = 0; block < world.value; block += static_cast<std::int32_t>(span)) {
    for (std::int32_t first = block; first < block + jump; ++first) {
      Clique clique;
      for (int member = 0; member < factor; ++member) clique.push_back({first + member * jump});
      cliques.push_back(std::move(clique));
    }
  }
  return cliques;
}

std::vector<Clique> spread_cliques(WorldSize world, int factor) {
  std::vector<Clique> cliques(static_cast<std::size_t>(std::max(world.value / factor, 1)));
  for (std::int32_t rank = 0; rank < world.value; ++rank)
    cliques[static_cast<std::size_t>(rank) % cliques.size()].push_back({rank});
  return cliques;
}

Result<std::vector<Clique>> sorted_cliques(WorldSize world, std::vector<Clique> cliques) {
  std::set<Rank> seen;
  for (auto& clique : cliques) {
    std::sort(clique.begin(), clique.end());
    for (auto rank : clique) {
      if (rank.value < 0 || rank.value >= world.value) {
        return fail(Errc::invalid_argument, "the clique [{}] names rank {}, the job has ranks 0 to {}",
                    fmt::join(numbers_of(clique), ", "), rank.value, world.value - 1);
      }
      if (seen.insert(rank).second) continue;
      return fail(Errc::invalid_argument,
                  "rank {} is in two cliques, or twice in one; each is in exactly one", rank.value);
    }
  }
  std::erase_if(cliques, [](const Clique& clique) { return clique.empty(); });
  for (std::int32_t rank = 0; rank < world.value; ++rank) {
    if (seen.contains({rank})) continue;
    return fail(Errc::invalid_argument,
                "rank {} is in no clique; a rank without peers is a clique of its own", rank);
  }
  return cliques;
}

const Clique& clique_of(Rank rank, std::span<const Clique> cliques) {
  const auto found = std::find_if(cliques.begin(), cliques.end(), [rank](const Clique& clique) {
    return std::find(clique.begin(), clique.end(), rank) != clique.end();
  });
  CHECK(found != cliques.end(), "every rank of the job is in a clique");
  return *found;
}

LatestCopies find_latest(const Holdings& holdings, std::span<const Clique> cliques,
                         std::span<const std::uint64_t> wants) {
  std::set<CopyName, std::greater<>> names;
  for (const auto& held : holdings) {
    for (const auto& copy : held) names.insert(copy.name);
  }
  LatestCopies latest;
  for (const auto& name : names) {
    const auto copies = copies_of(name, holdings);
    std::string why;
    const bool fits = fit(copies, holdings.size(), wants);
    for (const auto& clique : cliques) {
      const auto missing = fits && why.empty() ? uncovered(name, holdings, clique) : Clique{};
      if (missing.empty()) continue;
      why = fmt::format("the clique [{}] holds no copy of rank {}", fmt::join(numbers_of(clique), ", "),
                        fmt::join(numbers_of(missing), ", "));
    }
    if (!fits || !why.empty()) latest.givers = givers_of(copies, why);
    if ((fits && why.empty()) || !latest.givers.empty()) {
      latest.name = name;
      break;
    }
    latest.passed_over.push_back(fmt::format("the local save after step {}: {}", name.step.value, why));
  }
  return latest;
}

Result<std::vector<CopyTransfer>> plan_retrieval(const CopyName& wanted, const Holdings& holdings,
                                                 const Clique& clique) {
  std::vector<CopyTransfer> plan;
  std::map<Rank, std::uint64_t> sending;
  for (auto owner : clique) {
    CopyTransfer transfer;
    transfer.owner = owner;
    const HeldCopy* chosen = nullptr;
    for (auto member : clique) {
      const auto* copy = find_copy(holdings, member, wanted, owner);
      if (copy == nullptr) {
        transfer.to.push_back(member);
        continue;
      }
      const bool is_better =
          chosen == nullptr ||
          (transfer.from != owner && (member == owner || sending[member] < sending[transfer.from]));
      if (!is_better) continue;
      chosen = copy;
      transfer.from = member;
    }
    if (chosen == nullptr) {
      return fail(Errc::not_found,
                  "no rank of the clique [{}] holds rank {}'s copy of the save after step {}",
                  fmt::join(numbers_of(clique), ", "), owner.value, wanted.step.value);
    }
    if (transfer.to.empty()) continue;
    transfer.bytes = chosen->bytes;
    sending[transfer.from] += transfer.bytes;
    plan.push_back(std::move(transfer));
  }
  return plan;
}

std::vector<CopyTransfer> plan_replication(const Clique& clique, std::span<const std::uint64_t> bytes) {
  CHECK(clique.size() == bytes.size(), "every member's copy has a size");
  std::vector<CopyTransfer> plan;
  if (clique.size() == 1) return plan;
  for (std::size_t member = 0; member < clique.size(); ++member) {
    CopyTransfer transfer{clique[member], clique[member], bytes[member], {}};
    for (auto other : clique) {
      if (other != clique[member]) transfer.to.push_back(other);
    }
    plan.push_back(std::move(transfer));
  }
  return plan;
}

}  // namespace troupe::core
