#include "apps/troupe/diagnose/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "apps/troupe/diagnose/comparison.hpp"
#include "apps/troupe/diagnose/waits.hpp"
#include "core/enum_names.hpp"

namespace troupe::apps {

using core::Rank;
using gpu::FlightState;
using gpu::RecordedOperation;
using Kind = Diagnosis::Kind;

namespace {

std::string seconds_text(double seconds) {
  return fmt::format("{:.1f} s", std::max(seconds, 0.0));
}

const RankEvidence* find(const Evidence& evidence, Rank rank) {
  const auto found =
      std::ranges::find(evidence.ranks, rank, [](const auto& each) { return each.record.rank; });
  return found == evidence.ranks.end() ? nullptr : &*found;
}

/// Where the trainer is, and its process.
std::string condition_of(const RankEvidence& rank, const Times& times) {
  const auto& record = rank.record;
  std::string text = fmt::format("rank {} ", record.rank.value);
  if (record.phase == gpu::FlightPhase::in_step && record.phase_step >= 0) {
    text += fmt::format("is in step {}", record.phase_step);
  } else {
    text += fmt::format("is {}", name_of(record.phase));
  }
  if (!record.waits_for.empty()) {
    text += fmt::format(", where it waits for {}", record.waits_for);
  } else if (record.phase != gpu::FlightPhase::left) {
    text += ", in the trainer's own code";
  }
  const auto last = times.last_of(record);
  if (last.operation != nullptr) {
    text += fmt::format("; the last that it posted is {}", describe(*last.operation, last.group->name));
    if (last.operation->ended_ns != 0) text += ", which has ended";
  } else {
    text += "; it has posted nothing yet";
  }
  if (rank.process) text += fmt::format("; its process {}", describe(rank.process->state));
  return text;
}

class Explanation {
 public:
  explicit Explanation(const Evidence& evidence) : evidence_(evidence), times_(evidence) {}

  Diagnosis run() {
    for (const RankEvidence& rank : evidence_.ranks) found_.rows.push_back(row_of(rank));
    if (!explain_mismatch()) {
      const Waits waits(evidence_, times_);
      is_settled_ = times_.has_failed() || waits.has_suspects();
      if (!explain_wait(waits) && !explain_suspects(waits) && !explain_circle(waits) &&
          !explain_elsewhere(waits))
        explain_silence();
    }
    return std::move(found_);
  }

 private:
  void name(Kind kind, std::vector<Rank> culprits, std::vector<Rank> waiting) {
    found_.kind = kind;
    found_.culprits = std::move(culprits);
    found_.waiting = std::move(waiting);
  }

  bool explain_mismatch() {
    auto difference = find_difference(evidence_, times_);
    if (!difference) return false;
    name(Kind::mismatch, std::move(difference->odd), {});
    found_.sentence = std::move(difference->sentence);
    found_.subject = Diagnosis::Subject{difference->group, difference->operation};
    return true;
  }

  /// By rank that is waited for, the first wait for it.
  using Awaited = std::map<Rank, const Wait*>;

  static void add(const Waits& waits, Awaited& awaited, Rank rank, const Wait& wait) {
    const auto [at, is_new] = awaited.try_emplace(rank, &wait);
    if (is_new || waits.precedes(*at->second, wait)) return;
    if (waits.precedes(wait, *at->second) || wait.began < at->second->began) at->second = &wait;
  }

  /// Those whom something incriminates besides being waited for, as long as there are any: the rest
  /// were only slower than the failure. Otherwise those that do not come, and wait for nobody themselves.
  Awaited culprits_of(const Waits& waits) const {
    Awaited suspects;
    Awaited absent;
    Awaited inside;
    for (const Wait& wait : waits.all()) {
      if (!is_worth_a_word(wait)) continue;
      for (const auto& [ranks, found] : {std::pair(&wait.absent, &absent), {&wait.inside, &inside}}) {
        for (const Rank rank : *ranks) {
          if (find(evidence_, rank) == nullptr) continue;
          if (waits.is_suspect(rank)) add(waits, suspects, rank, wait);
          if (!waits.waits(rank)) add(waits, *found, rank, wait);
        }
      }
    }
    if (waits.has_suspects()) return suspects;
    return !absent.empty() ? absent : inside;
  }

  bool explain_wait(const Waits& waits) {
    const Awaited first = culprits_of(waits);
    if (first.empty()) return false;
    // Where several are waited for in several places, the wait that began first.
    const Wait& wait =
        *std::ranges::min_element(first, {}, [](const auto& entry) { return entry.second->began; })->second;
    std::vector<Rank> culprits;
    std::vector<Rank> here;
    bool are_gone = true;
    bool is_posted = true;
    for (const auto& [rank, of] : first) {
      culprits.push_back(rank);
      const auto* const evidence = find(evidence_, rank);
      are_gone &= evidence != nullptr && evidence->process && evidence->process->is_gone();
      const bool is_absent = std::ranges::find(wait.absent, rank) != wait.absent.end();
      const bool is_inside = std::ranges::find(wait.inside, rank) != wait.inside.end();
      if (is_absent || is_inside) here.push_back(rank);
      is_posted &= !is_absent;
    }
    const auto waiting = waits.waiting_in(wait);
    const std::string waited = wait.is_over ? "waited" : waiting.size() == 1 ? "waits" : "wait";
    found_.sentence =
        fmt::format("{} did not {} {}; {} {} in it for {}", names_of(here), is_posted ? "go on in" : "post",
                    describe(*wait.operation, wait.group->name), names_of(waiting), waited,
                    seconds_text(static_cast<double>(wait.ended - wait.began) * 1e-9));
    for (const Rank rank : culprits) found_.sentence += "; " + condition_of(*find(evidence_, rank), times_);
    found_.subject = Diagnosis::Subject{wait.group->name, *wait.operation};
    name(are_gone ? Kind::lost : Kind::hang, std::move(culprits), waiting);
    return true;
  }

  bool is_worth_a_word(const Wait& wait) const {
    return is_settled_ || std::chrono::nanoseconds(wait.ended - wait.began) >= evidence_.patience;
  }

  bool explain_circle(const Waits& waits) {
    const auto circle = waits.find_circle();
    if (circle.empty() ||
        !std::ranges::all_of(circle, [&](const Wait* wait) { return is_worth_a_word(*wait); }))
      return false;
    std::vector<Rank> ranks;
    std::string text;
    for (std::size_t i = 0; i < circle.size(); ++i) {
      const Wait& wait = *circle[i];
      ranks.push_back(wait.rank);
      text += fmt::format("{}rank {} {} in {} for rank {}", text.empty() ? "" : ", and ", wait.rank.value,
                          wait.is_over ? "waited" : "waits", describe(*wait.operation, wait.group->name),
                          circle[(i + 1) % circle.size()]->rank.value);
    }
    found_.sentence =
        fmt::format("{} wait for each other: {}; they must post the operations of these groups in one order",
                    names_of(ranks), text);
    found_.subject = Diagnosis::Subject{circle.front()->group->name, *circle.front()->operation};
    name(Kind::circle, ranks, ranks);
    return true;
  }

  bool explain_elsewhere(const Waits& waits) {
    std::set<Rank> absent;
    const Wait* first = nullptr;
    for (const Wait& wait : waits.all()) {
      if (!is_worth_a_word(wait)) continue;
      for (const Rank rank : wait.absent) {
        if (find(evidence_, rank) != nullptr) continue;
        absent.insert(rank);
        if (first == nullptr || wait.began < first->began) first = &wait;
      }
    }
    if (first == nullptr) return false;
    const std::vector<Rank> culprits(absent.begin(), absent.end());
    const auto waiting = waits.waiting_in(*first);
    found_.sentence = fmt::format(
        "{} {} in {}, and {} {} no record here: give the folders of all hosts, or look why {} not begun",
        names_of(waiting), waiting.size() == 1 ? "waits" : "wait",
        describe(*first->operation, first->group->name), names_of(culprits),
        culprits.size() == 1 ? "has" : "have", culprits.size() == 1 ? "it has" : "they have");
    found_.subject = Diagnosis::Subject{first->group->name, *first->operation};
    name(Kind::elsewhere, culprits, waiting);
    return true;
  }

  /// Nobody came to wait for it, and yet a process is gone or stopped, or lost to others.
  bool explain_suspects(const Waits& waits) {
    std::vector<Rank> culprits;
    bool are_gone = true;
    for (const RankEvidence& rank : evidence_.ranks) {
      if (!waits.is_suspect(rank.record.rank)) continue;
      culprits.push_back(rank.record.rank);
      are_gone &= rank.process && rank.process->is_gone();
      found_.sentence += (found_.sentence.empty() ? "" : "; ") + condition_of(rank, times_);
    }
    // Where all are gone, and none has heard of another's failure, nobody knows which of them was the first.
    if (culprits.empty() || (culprits.size() > 1 && culprits.size() == evidence_.ranks.size())) {
      found_.sentence.clear();
      return false;
    }
    name(are_gone ? Kind::lost : Kind::hang, std::move(culprits), {});
    return true;
  }

  /// Nobody waits in an operation: perhaps ranks wait in the runtime for one that does not get there.
  void explain_silence() {
    std::vector<Rank> waiting;
    std::vector<Rank> others;
    double longest = 0;
    for (const RankEvidence& rank : evidence_.ranks) {
      const auto& record = rank.record;
      if (record.phase == gpu::FlightPhase::left) continue;
      if (record.waits_for.empty()) {
        others.push_back(record.rank);
        continue;
      }
      waiting.push_back(record.rank);
      longest = std::max(longest, times_.seconds_since(record, record.waits_since_ns));
    }
    const bool is_long = std::chrono::duration<double>(longest) >= evidence_.patience;
    if (waiting.empty() || others.empty() || !is_long || times_.has_failed()) {
      found_.sentence = "no rank waits for another one";
      return;
    }
    found_.sentence =
        fmt::format("{} {} for {}: {}", names_of(waiting), waiting.size() == 1 ? "has waited" : "have waited",
                    seconds_text(longest), find(evidence_, waiting.front())->record.waits_for);
    for (const Rank rank : others) found_.sentence += "; " + condition_of(*find(evidence_, rank), times_);
    name(Kind::hang, others, waiting);
  }

  Diagnosis::Row row_of(const RankEvidence& rank) const {
    const auto& record = rank.record;
    Diagnosis::Row row{.rank = record.rank};
    if (rank.process) row.process = to_json(*rank.process)["state"].get<std::string>();
    row.phase = record.phase == gpu::FlightPhase::in_step ? fmt::format("in step {}", record.phase_step)
                                                          : std::string(name_of(record.phase));
    row.waits_for = record.waits_for;
    const auto last = times_.oldest_open_of(record);
    if (last.operation == nullptr) return row;
    const auto& operation = *last.operation;
    row.operation = describe(operation, last.group->name);
    row.state = operation.code ? fmt::format("failed ({})", core::to_string(*operation.code))
                               : std::string(name_of(operation.state));
    const auto since = std::max({operation.posted_ns, operation.launched_ns, operation.ended_ns});
    row.seconds = times_.seconds_since(record, since);
    return row;
  }

  const Evidence& evidence_;
  const Times times_;
  bool is_settled_ = false;  ///< something is wrong, however short the waits were
  Diagnosis found_;
};

}  // namespace

Diagnosis diagnose(const Evidence& evidence) {
  return Explanation(evidence).run();
}

std::string_view name_of(Kind kind) noexcept {
  static constexpr auto kNames =
      core::enum_names<Kind>("nothing", "hang", "mismatch", "circle", "lost", "elsewhere");
  return kNames[kind];
}

std::string names_of(const std::vector<Rank>& ranks) {
  constexpr std::size_t kMost = 16;
  if (ranks.empty()) return "no rank";
  std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", ranks[0].value);
  const std::size_t shown = std::min(ranks.size(), kMost);
  for (std::size_t i = 1; i < shown; ++i)
    text += fmt::format("{}{}", i + 1 == ranks.size() ? " and " : ", ", ranks[i].value);
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

std::string describe(const RecordedOperation& operation, const std::string& group) {
  std::string text = fmt::format("{} number {}", name_of(operation.kind), operation.sequence);
  if (operation.kind == gpu::OperationKind::send) text += fmt::format(" to member {}", operation.peer);
  if (operation.kind == gpu::OperationKind::receive) text += fmt::format(" from member {}", operation.peer);
  text += fmt::format(" of group {}", group);
  if (operation.step >= 0) text += fmt::format(" of step {}", operation.step);
  if (operation.unit >= 0) text += fmt::format(", unit {}", operation.unit);
  return text;
}

}  // namespace troupe::apps
