#include "apps/troupe/diagnose/diagnose_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line/json_text.hpp"
#include "apps/troupe/diagnose/diagnosis.hpp"
#include "apps/troupe/diagnose/records.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kNamed = 1;
constexpr int kNoRecord = 3;

struct Flags {
  std::vector<std::string> places;
  double patience_seconds = 1;
  bool json = false;
};

int exit_code_of(const FoundRecords& found, const Diagnosis& diagnosis) {
  if (found.evidence.ranks.empty()) return kNoRecord;
  return diagnosis.kind == Diagnosis::Kind::nothing ? 0 : kNamed;
}

/// Columns as wide as what is in them.
void print_table(const std::vector<Diagnosis::Row>& rows) {
  using Line = std::vector<std::string>;
  std::vector<Line> lines{{"rank", "process", "trainer", "waits for", "operation", "state", "seconds"}};
  for (const auto& row : rows) {
    lines.push_back({std::to_string(row.rank.value), row.process, row.phase, row.waits_for, row.operation,
                     row.state, row.operation.empty() ? "" : fmt::format("{:.1f}", row.seconds)});
  }
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const Line& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i)
      text += fmt::format("{:<{}}  ", line[i].empty() ? "-" : line[i], widths[i]);
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", text);
  }
}

void print_threads(const Evidence& evidence, const std::vector<core::Rank>& culprits) {
  for (const RankEvidence& rank : evidence.ranks) {
    if (!rank.process || std::ranges::find(culprits, rank.record.rank) == culprits.end()) continue;
    const auto& facts = *rank.process;
    if (facts.threads.empty()) continue;
    fmt::print("\nthe threads of rank {} (pid {} on {}):\n", rank.record.rank.value, rank.record.pid,
               rank.record.host_name);
    // Most of them often hang in the same place.
    std::map<std::vector<std::string>, std::vector<std::string>> places;
    for (const auto& thread : facts.threads) {
      std::vector<std::string> place{fmt::format("{} {}", thread.state, thread.waits_in)};
      place.insert(place.end(), thread.stack.begin(), thread.stack.end());
      places[std::move(place)].push_back(fmt::format("{} ({})", thread.name, thread.id));
    }
    for (const auto& [place, threads] : places) {
      fmt::print("  {}: {}\n", place.front(), fmt::join(threads, ", "));
      for (std::size_t i = 1; i < place.size(); ++i) fmt::print("      {}\n", place[i]);
    }
    if (!facts.not_allowed.empty()) fmt::print("  not allowed: {}\n", facts.not_allowed);
  }
}

Json numbers_of(const std::vector<core::Rank>& ranks) {
  Json numbers = Json::array();
  for (const core::Rank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

Json json_of(const FoundRecords& found, const Diagnosis& diagnosis) {
  Json json = {{"verdict", found.evidence.ranks.empty() ? "no record" : name_of(diagnosis.kind)},
               {"sentence", diagnosis.sentence},
               {"ranks", numbers_of(diagnosis.culprits)},
               {"waiting", numbers_of(diagnosis.waiting)},
               {"operation", nullptr},
               {"table", Json::array()},
               {"processes", Json::object()},
               {"problems", found.problems}};
  if (diagnosis.subject) {
    const auto& [group, operation] = *diagnosis.subject;
    json["operation"] = {{"group", group},
                         {"kind", name_of(operation.kind)},
                         {"number", operation.sequence},
                         {"step", operation.step},
                         {"unit", operation.unit},
                         {"dtype", core::name_of(operation.dtype)},
                         {"bytes", operation.bytes}};
  }
  for (const auto& row : diagnosis.rows) {
    json["table"].push_back({{"rank", row.rank.value},
                             {"process", row.process},
                             {"trainer", row.phase},
                             {"waits_for", row.waits_for},
                             {"operation", row.operation},
                             {"state", row.state},
                             {"seconds", row.seconds}});
  }
  for (const RankEvidence& rank : found.evidence.ranks) {
    if (rank.process) json["processes"][std::to_string(rank.record.rank.value)] = to_json(*rank.process);
  }
  return json;
}

int run(const Flags& flags) {
  auto found = find_records({flags.places.begin(), flags.places.end()});
  found.evidence.patience = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(flags.patience_seconds));
  Diagnosis diagnosis;
  if (!found.evidence.ranks.empty()) diagnosis = diagnose(found.evidence);
  if (flags.json) {
    fmt::print("{}", json_text(json_of(found, diagnosis)));
    return exit_code_of(found, diagnosis);
  }
  if (found.evidence.ranks.empty()) {
    fmt::print(
        "there is no flight record; give the folder of a job (troupe launch --log-dir), or the "
        "value that TROUPE_FLIGHT_RECORD had\n");
  } else {
    fmt::print("{}\n\n", diagnosis.sentence);
    print_table(diagnosis.rows);
    print_threads(found.evidence, diagnosis.culprits);
  }
  if (!found.problems.empty()) fmt::print("\n");
  for (const std::string& problem : found.problems) fmt::print("note: {}\n", problem);
  return exit_code_of(found, diagnosis);
}

}  // namespace

void add_diagnose_command(CLI::App& troupe, int& exit_code) {
  CLI::App* const diagnose = troupe.add_subcommand(
      "diagnose",
      "Say from the flight records of a job's ranks which rank did not reach which operation, or posted "
      "another one. Exit code 0: no rank waits for another; 1: a rank is named; 3: no record");
  const auto flags = std::make_shared<Flags>();  // owned by the callback
  diagnose
      ->add_option("PLACE", flags->places,
                   "The job's folder on each of its hosts, or the value that TROUPE_FLIGHT_RECORD had")
      ->required();
  diagnose
      ->add_option("--patience", flags->patience_seconds,
                   "Seconds for which ranks of a running job may wait for each other before any is named")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  diagnose->add_flag("--json", flags->json, "Print JSON instead of sentences and a table");
  diagnose->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace troupe::apps
