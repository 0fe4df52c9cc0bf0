#include "actors/roles/plan_search.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/hash.hpp"

namespace troupe::actors {

messages::PlanHashes plan_hashes(core::Rank rank, const std::vector<std::string>& plan,
                                 const messages::PlanPartWanted& wanted) {
  messages::PlanHashes answer{rank, wanted.first, wanted.block, {}};
  auto next = wanted.first;
  while (wanted.block > 0 && next < plan.size() && answer.hashes.size() < kPlanFanOut) {
    const auto end = next + std::min<std::uint64_t>(wanted.block, plan.size() - next);
    std::uint64_t hash = 0;
    for (; next < end; ++next) hash = core::hash64(plan[next], hash);
    answer.hashes.push_back(hash);
  }
  return answer;
}

messages::PlanLines plan_lines(core::Rank rank, const std::vector<std::string>& plan,
                               const messages::PlanPartWanted& wanted) {
  messages::PlanLines answer{rank, {}};
  for (auto next = wanted.first; next < plan.size() && answer.lines.size() < kPlanFanOut; ++next) {
    const auto& line = plan[next];
    const bool is_short = line.size() <= kPlanLineBytes;
    answer.lines.push_back(is_short ? line
                                    : fmt::format("{}... ({} bytes with the hash {:016x})",
                                                  line.substr(0, kPlanLineBytes), line.size(),
                                                  core::hash64(line)));
  }
  return answer;
}

std::string first_difference(const std::vector<std::string>& ours, const std::vector<std::string>& theirs,
                             std::uint64_t first) {
  const auto place = static_cast<std::size_t>(
      std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end()).first - ours.begin());
  auto line = [place](const std::vector<std::string>& lines) {
    return place < lines.size() ? lines[place] : std::string("nothing more");
  };
  return fmt::format("entry {}: rank 0 has \"{}\", the other has \"{}\"", first + place, line(ours),
                     line(theirs));
}

bool PlanSearch::add(const messages::PlanHashes& answer) {
  const bool is_wanted = answer.first == wanted_.first && answer.block == wanted_.block;
  if (!is_wanted || !is_asked(answer.rank)) return false;
  hashes_[answer.rank] = answer;
  if (hashes_.size() < ranks_.size()) return false;
  const auto& ours = hashes_[ranks_[0]].hashes;
  const auto& theirs = hashes_[ranks_[1]].hashes;
  const auto place = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end()).first;
  wanted_.first += static_cast<std::uint64_t>(place - ours.begin()) * wanted_.block;
  wanted_.block /= kPlanFanOut;
  hashes_.clear();
  return true;
}

std::optional<std::string> PlanSearch::add(const messages::PlanLines& answer) {
  if (wanted_.block != 1 || !is_asked(answer.rank)) return std::nullopt;
  lines_[answer.rank] = answer;
  if (lines_.size() < ranks_.size()) return std::nullopt;
  return first_difference(lines_[ranks_[0]].lines, lines_[ranks_[1]].lines, wanted_.first);
}

}  // namespace troupe::actors
