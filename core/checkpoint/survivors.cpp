#include "core/checkpoint/survivors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/dtype.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr std::size_t kFields = 8;

/// Reads decimal numbers with single blanks between them.
std::optional<std::vector<std::uint64_t>> numbers_in(std::string_view text) {
  std::vector<std::uint64_t> numbers;
  while (true) {
    const auto word = text.substr(0, text.find(' '));
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || error != std::errc{} || end != word.data() + word.size()) return {};
    numbers.push_back(number);
    if (word.size() == text.size()) return numbers;
    text.remove_prefix(word.size() + 1);
  }
}

/// States of one origin and one layout, which can be put together.
struct Kin {
  std::uint64_t origin = 0;
  std::uint64_t layout = 0;
  auto operator<=>(const Kin&) const = default;
};

CommonStep step_of(std::span<const SurvivorReport> reports, const Kin& kin, StepCount over) {
  CommonStep step{kin.origin, over, {}, {}, {}};
  const auto each = [&](const auto& visit) {
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const auto& has = reports[rank].has;
      if (has && Kin{has->origin, has->layout} == kin) visit(*has, Rank{static_cast<std::int32_t>(rank)});
    }
  };
  each([&](const Survivor& has, Rank rank) {
    if (has.over == over && has.knows_last_decision && !step.decided_by) step.decided_by = rank;
  });
  each([&](const Survivor& has, Rank rank) {
    const bool finishes = step.decided_by && has.may_finish_next && has.over.value + 1 == over.value;
    if (has.over != over && !finishes) return;
    step.holders.push_back(rank);
    if (finishes) step.finishing.push_back(rank);
  });
  return step;
}

/// Collects what ranks hold, and then who takes what from whom.
class SurvivalPlanner {
 public:
  explicit SurvivalPlanner(std::span<const SurvivalPart> parts) : parts_(parts) {}

  Result<std::unique_ptr<const Survival>> plan() {
    auto survival = std::make_unique<Survival>();
    collect(survival->manifest);
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
      if (parts_[rank].wants != nullptr) TRY(take(survival->manifest, static_cast<std::uint32_t>(rank)));
    }
    for (auto& [at, read] : reads_) survival->plan.reads.push_back(std::move(read));
    choose_givers(survival->plan);
    return std::unique_ptr<const Survival>(std::move(survival));
  }

 private:
  /// Lays out the boxes that holders have, each once, one after another in an imagined file.
  void collect(Manifest& manifest) {
    struct Known {
      ManifestTensor tensor;
      std::map<Box, std::vector<std::uint32_t>> holders;
    };
    std::map<std::string, Known> known;
    // Replicas share one structure, which is read once.
    std::map<const SaveStructure*, std::vector<std::uint32_t>> ranks_of;
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
      for (const auto* has : parts_[rank].has) ranks_of[has].push_back(static_cast<std::uint32_t>(rank));
    }
    for (const auto& [structure, ranks] : ranks_of) {
      for (const auto& piece : structure->pieces) {
        if (piece.box.is_empty()) continue;
        const auto& tensor = structure->tensors[piece.tensor];
        auto& entry = known[tensor.key];
        entry.tensor.key = tensor.key;
        entry.tensor.dtype = tensor.dtype;
        entry.tensor.shape = tensor.shape;
        auto& holders = entry.holders[piece.box];
        holders.insert(holders.end(), ranks.begin(), ranks.end());
      }
    }
    manifest.files.push_back({"memory", 0, 0, 0});
    auto& end = manifest.files.front().bytes;
    for (auto& [key, entry] : known) {
      for (auto& [box, holders] : entry.holders) {
        const auto bytes = static_cast<std::uint64_t>(box.elements()) * size_of(entry.tensor.dtype);
        std::sort(holders.begin(), holders.end());
        holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
        holders_.emplace(end, std::move(holders));
        entry.tensor.shards.push_back({box, 0, end, end + bytes, 0});
        end += bytes;
      }
      manifest.tensors.push_back(std::move(entry.tensor));
    }
  }

  Result<void> take(const Manifest& manifest, std::uint32_t rank) {
    const auto* structure = parts_[rank].wants;
    auto known = wanted_.find(structure);
    if (known == wanted_.end()) {
      auto targets = targets_of(*structure);
      auto load = TRY(plan_load(manifest, targets));
      for (const auto lacking : load.zero) {
        const auto& target = targets[lacking];
        if (target.box.is_empty()) continue;
        return fail(Errc::not_found, "nobody has all of {} of '{}' any more", to_string(target.box),
                    target.key);
      }
      known = wanted_.emplace(structure, Wanted{std::move(targets), std::move(load)}).first;
    }
    for (const auto& read : known->second.load.reads) {
      const auto& holders = holders_.at(read.shard->begin);
      if (std::binary_search(holders.begin(), holders.end(), rank)) continue;
      auto& shared = reads_[read.shard->begin];
      shared.tensor = read.tensor;
      shared.shard = read.shard;
      shared.parts.push_back(part_of(rank, read, known->second.targets));
    }
    return {};
  }

  void choose_givers(SharedLoadPlan& plan) const {
    std::vector<std::uint64_t> given(parts_.size());
    for (auto& read : plan.reads) {
      const auto& holders = holders_.at(read.shard->begin);
      read.reader = *std::min_element(holders.begin(), holders.end(),
                                      [&](auto a, auto b) { return given[a] < given[b]; });
      for (const auto& part : read.parts) given[read.reader] += part.end - part.begin;
    }
  }

  struct Wanted {
    std::vector<LoadTarget> targets;
    LoadPlan load;
  };

  std::span<const SurvivalPart> parts_;
  std::map<std::uint64_t, std::vector<std::uint32_t>> holders_;  ///< by the beginning of the shard
  std::map<const SaveStructure*, Wanted> wanted_;
  std::map<std::uint64_t, SharedRead> reads_;  ///< as above
};

}  // namespace

std::string to_text(const SurvivorReport& report) {
  if (!report.has) return fmt::format("{}", report.wants);
  const auto& has = *report.has;
  return fmt::format("{} {} {} {} {} {} {} {}", report.wants, has.origin, has.layout, has.over.value,
                     has.may_finish_next ? 1 : 0, has.knows_last_decision ? 1 : 0, has.structure,
                     report.stays ? 1 : 0);
}

Result<SurvivorReport> parse_survivor_report(std::string_view text) {
  const auto numbers = numbers_in(text);
  const auto altered = [&] {
    return fail(Errc::corrupt, "what a rank has in memory arrived altered: '{}'", text.substr(0, 100));
  };
  if (!numbers || (numbers->size() != 1 && numbers->size() != kFields)) return altered();
  SurvivorReport report{{}, numbers->at(0), false};
  if (numbers->size() == 1) return report;
  report.stays = numbers->at(7) == 1;
  const auto over = numbers->at(3);
  if (over > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) || numbers->at(4) > 1 ||
      numbers->at(5) > 1 || numbers->at(7) > 1)
    return altered();
  report.has = Survivor{numbers->at(1),      numbers->at(2),      {static_cast<std::int64_t>(over)},
                        numbers->at(4) == 1, numbers->at(5) == 1, numbers->at(6)};
  return report;
}

std::vector<CommonStep> common_steps(std::span<const SurvivorReport> reports) {
  std::vector<std::tuple<std::uint64_t, StepCount, Kin>> known;
  for (const auto& report : reports) {
    if (report.has)
      known.emplace_back(report.has->origin, report.has->over, Kin{report.has->origin, report.has->layout});
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::vector<CommonStep> steps;
  for (auto each = known.rbegin(); each != known.rend(); ++each)
    steps.push_back(step_of(reports, std::get<Kin>(*each), std::get<StepCount>(*each)));
  return steps;
}

Result<std::unique_ptr<const Survival>> plan_survival(std::span<const SurvivalPart> parts) {
  return SurvivalPlanner(parts).plan();
}

std::vector<LoadTarget> targets_of(const SaveStructure& structure) {
  std::vector<LoadTarget> targets;
  for (const auto& piece : structure.pieces) {
    const auto& tensor = structure.tensors[piece.tensor];
    targets.push_back({tensor.key, tensor.dtype, tensor.shape, piece.box});
  }
  return targets;
}

}  // namespace troupe::core
