#include "apps/troupe/diagnose/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "gpu/collective/operations.hpp"

namespace troupe::apps {

using core::Rank;
using gpu::OperationKind;
using gpu::RecordedGroup;
using gpu::RecordedOperation;

namespace {

/// What a member has posted at a place.
struct Posted {
  Rank rank{};
  int index = 0;  ///< in the group
  const RecordedOperation* operation = nullptr;
  std::int64_t wall = 0;
};

/// What must be the same for all members.
auto common_part(const RecordedOperation& operation) {
  const bool is_barrier = operation.kind == OperationKind::barrier;
  const bool has_sizes = !is_barrier && operation.kind != OperationKind::all_to_all;
  return std::tuple(operation.kind, is_barrier ? core::DType::f32 : operation.dtype,
                    gpu::reduces(operation.kind) ? operation.reduce : gpu::ReduceOp::sum,
                    operation.kind == OperationKind::broadcast ? operation.peer : 0,
                    has_sizes ? operation.elements : 0, operation.counts);
}

std::string text_of(const RecordedOperation& operation) {
  std::string text(name_of(operation.kind));
  if (gpu::reduces(operation.kind)) text += fmt::format(" ({})", name_of(operation.reduce));
  if (operation.kind == OperationKind::barrier) return text;
  if (operation.kind == OperationKind::broadcast) text += fmt::format(" from member {}", operation.peer);
  if (operation.kind != OperationKind::all_to_all) text += fmt::format(" of {}", operation.elements);
  text += fmt::format(" {}", core::name_of(operation.dtype));
  return operation.counts == 0 ? text : text + fmt::format(" (counts {:08x})", operation.counts >> 32);
}

/// Operations by the place at which they must fit: group and members, and number.
using PostedPlaces = std::map<std::tuple<std::string, std::vector<Rank>, std::uint64_t>, std::vector<Posted>>;
/// Messages also by who sends, and who receives.
using MessagePlaces =
    std::map<std::tuple<std::string, std::vector<Rank>, int, int, std::uint64_t>, std::vector<Posted>>;

class Comparison {
 public:
  /// Operations that came after the failure count: they show what the rank's program is.
  Comparison(const Evidence& evidence, const Times& times) {
    for (const auto& [record, process] : evidence.ranks) {
      for (const RecordedGroup& group : record.groups) {
        for (const RecordedOperation& operation : group.operations) {
          const Posted posted{record.rank, group.index, &operation, times.wall(record, operation.posted_ns)};
          if (!operation.is_message()) {
            collectives_[{group.name, group.members, operation.sequence}].push_back(posted);
            continue;
          }
          const bool sends = operation.kind == OperationKind::send;
          messages_[{group.name, group.members, sends ? group.index : operation.peer,
                     sends ? operation.peer : group.index, operation.sequence}]
              .push_back(posted);
        }
      }
    }
  }

  std::optional<Difference> run() {
    for (const auto& [place, posted] : collectives_) compare(std::get<0>(place), posted);
    for (const auto& [place, posted] : messages_) compare_message(std::get<0>(place), posted);
    return std::move(found_);
  }

 private:
  bool is_first(const std::vector<Posted>& posted) {
    const std::int64_t first = std::ranges::min(posted, {}, &Posted::wall).wall;
    if (found_ && first >= first_) return false;
    first_ = first;
    return true;
  }

  void compare(const std::string& group, const std::vector<Posted>& posted) {
    // In the order of ranks, so that the sentence is.
    std::vector<std::vector<const Posted*>> kinds;
    for (const Posted& each : posted) {
      const auto alike = std::ranges::find_if(kinds, [&](const auto& kind) {
        return common_part(*kind.front()->operation) == common_part(*each.operation);
      });
      if (alike == kinds.end()) {
        kinds.push_back({&each});
      } else {
        alike->push_back(&each);
      }
    }
    if (kinds.size() < 2 || !is_first(posted)) return;
    std::ranges::stable_sort(kinds, std::ranges::greater{}, [](const auto& kind) { return kind.size(); });
    const bool has_majority = kinds[0].size() > kinds[1].size();
    Difference difference{.group = group, .operation = *kinds[0].front()->operation};
    std::string odd;
    std::string most;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      std::vector<Rank> ranks;
      for (const Posted* const each : kinds[i]) ranks.push_back(each->rank);
      const auto text = fmt::format("{} posted {}", names_of(ranks), text_of(*kinds[i].front()->operation));
      if (i == 0) {
        most = text;
      } else {
        odd += (odd.empty() ? "" : ", ") + text;
      }
      if (i > 0 || !has_majority) difference.odd.insert(difference.odd.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(difference.odd);
    const auto& operation = difference.operation;
    difference.sentence = fmt::format("{} as collective number {} of group {}{}, but {}", odd,
                                      operation.sequence, group, where(operation), most);
    found_ = std::move(difference);
  }

  void compare_message(const std::string& group, const std::vector<Posted>& posted) {
    if (posted.size() != 2) return;
    const bool is_sent_first = posted[0].operation->kind == OperationKind::send;
    const Posted& send = posted[is_sent_first ? 0 : 1];
    const Posted& receive = posted[is_sent_first ? 1 : 0];
    const auto& [sent, received] = std::pair(*send.operation, *receive.operation);
    if (sent.kind == received.kind) return;
    if (sent.dtype == received.dtype && sent.elements == received.elements) return;
    if (!is_first(posted)) return;
    Difference difference{.odd = {send.rank, receive.rank}, .group = group, .operation = sent};
    std::ranges::sort(difference.odd);
    difference.sentence = fmt::format(
        "rank {} posted a receive of {} {} as message number {} from rank {} in group {}{}, but rank {} "
        "posted a send of {} {}",
        receive.rank.value, received.elements, core::name_of(received.dtype), sent.sequence, send.rank.value,
        group, where(sent), send.rank.value, sent.elements, core::name_of(sent.dtype));
    found_ = std::move(difference);
  }

  static std::string where(const RecordedOperation& operation) {
    std::string text;
    if (operation.step >= 0) text += fmt::format(" of step {}", operation.step);
    if (operation.unit >= 0) text += fmt::format(", unit {}", operation.unit);
    return text;
  }

  PostedPlaces collectives_;
  MessagePlaces messages_;
  std::optional<Difference> found_;
  std::int64_t first_ = 0;
};

}  // namespace

std::optional<Difference> find_difference(const Evidence& evidence, const Times& times) {
  return Comparison(evidence, times).run();
}

}  // namespace troupe::apps
