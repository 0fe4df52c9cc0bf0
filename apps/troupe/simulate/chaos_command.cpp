#include "apps/troupe/simulate/chaos_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actors/chaos/chaos.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using actors::ChaosKind;
using actors::ChaosPhase;
using actors::ChaosReport;
using actors::ChaosSchedule;

namespace {

actors::PlantedBug planted_bug(const std::string& name) {
  const auto found = std::ranges::find(actors::kPlantedNames, name, &actors::PlantedName::name);
  return found == actors::kPlantedNames.end() ? actors::PlantedBug::none : found->bug;
}

/// An option that means nothing for jobs of one epoch, if one is given.
std::string lonely_option(const ChaosCommandOptions& o) {
  if (!o.write.empty()) return "--write";
  if (o.shrink) return "--shrink";
  if (o.tell) return "--tell";
  return o.plant == "none" ? "" : "--plant";
}

core::Result<ChaosSchedule> read_schedule(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return core::fail(core::Errc::not_found, "--replay: cannot read {}", path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto schedule = actors::parse_schedule(text);
  if (!schedule) return core::fail(schedule.error().code, "--replay: {}: {}", path, schedule.error().message);
  return schedule;
}

core::Result<void> write_schedule(const std::string& path, const ChaosSchedule& schedule) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file << actors::to_text(schedule) << std::flush) return {};
  return core::fail(core::Errc::io, "--write: cannot write {}", path);
}

/// What all runs of a call came to.
struct Total {
  int runs = 0;
  int violated = 0;
  std::uint64_t events = 0;
  double virtual_seconds = 0;
  double real_seconds = 0;
  actors::ChaosCoverage coverage;
  nlohmann::ordered_json violations = nlohmann::ordered_json::array();
};

nlohmann::ordered_json json_of(const ChaosSchedule& schedule, const ChaosReport& report) {
  return {{"seed", schedule.seed},
          {"violations", report.violations},
          {"schedule", actors::to_text(schedule)},
          {"log", report.log},
          {"trace_hash", fmt::format("{:016x}", report.trace_hash)},
          {"exit_code", report.exit_code},
          {"epochs", report.generations},
          {"restarts", report.restarts},
          {"virtual_seconds", std::chrono::duration<double>(report.virtual_time).count()}};
}

nlohmann::ordered_json json_of(const actors::ChaosCoverage& coverage) {
  nlohmann::ordered_json json;
  for (std::size_t kind = 0; kind < actors::kChaosKinds; ++kind) {
    auto& row = json[std::string(name_of(static_cast<ChaosKind>(kind)))];
    for (std::size_t phase = 0; phase < actors::kChaosPhases; ++phase)
      row[std::string(name_of(static_cast<ChaosPhase>(phase)))] = coverage.met[kind][phase];
  }
  return json;
}

void print(const actors::ChaosCoverage& coverage) {
  fmt::print("{:<16}", "fault met in");
  for (std::size_t phase = 0; phase < actors::kChaosPhases; ++phase)
    fmt::print("{:>12}", name_of(static_cast<ChaosPhase>(phase)));
  fmt::print("\n");
  for (std::size_t kind = 0; kind < actors::kChaosKinds; ++kind) {
    fmt::print("{:<16}", name_of(static_cast<ChaosKind>(kind)));
    for (const auto count : coverage.met[kind]) fmt::print("{:>12}", count);
    fmt::print("\n");
  }
}

void print(const ChaosSchedule& schedule, const ChaosReport& report) {
  for (const auto& line : report.log) fmt::print("{}\n", line);
  fmt::print(
      "seed {}: exit code {} after {} epochs and {} restarts, {:.6f} virtual s, {} events, trace {:016x}\n",
      schedule.seed, report.exit_code, report.generations, report.restarts,
      std::chrono::duration<double>(report.virtual_time).count(), report.events, report.trace_hash);
  for (const auto& violation : report.violations) fmt::print("  violated: {}\n", violation);
}

/// The schedule of a violation, or of the only run, in a file or for people.
core::Result<void> show(const ChaosCommandOptions& o, const ChaosSchedule& schedule, bool is_violated) {
  const auto shown = o.shrink && is_violated ? actors::shrunk(schedule, planted_bug(o.plant)) : schedule;
  if (o.shrink && is_violated && !o.json)
    fmt::print("shrunk from {} faults to {}\n", schedule.faults.size(), shown.faults.size());
  if (!o.write.empty()) return write_schedule(o.write, shown);
  if (is_violated && !o.json) fmt::print("{}", actors::to_text(shown));
  return {};
}

core::Result<void> run_one(const ChaosCommandOptions& o, const ChaosSchedule& schedule, bool is_only,
                           Total& total) {
  const auto report = actors::run_chaos(schedule, planted_bug(o.plant), o.tell);
  ++total.runs;
  total.events += report.events;
  total.virtual_seconds += std::chrono::duration<double>(report.virtual_time).count();
  total.coverage.add(report.coverage);
  const bool is_violated = !report.violations.empty();
  total.violated += is_violated ? 1 : 0;
  const bool is_shown = is_violated || is_only;
  if (is_shown && o.json) total.violations.push_back(json_of(schedule, report));
  if (is_shown && !o.json) print(schedule, report);
  const bool is_first = is_violated && total.violated == 1;
  return is_first || is_only ? show(o, schedule, is_violated) : core::Result<void>{};
}

core::Result<Total> run_all(const ChaosCommandOptions& o) {
  Total total;
  const auto began = std::chrono::steady_clock::now();
  if (!o.replay.empty()) {
    const auto schedule = TRY(read_schedule(o.replay));
    TRY(run_one(o, schedule, true, total));
  }
  const actors::ChaosBounds bounds{o.nodes, o.ranks, o.spares, actors::ChaosBounds{}.steps, o.faults};
  for (int i = 0; o.replay.empty() && i < o.seeds; ++i)
    TRY(run_one(o, actors::drawn_schedule(o.seed + static_cast<std::uint64_t>(i), bounds), o.seeds == 1,
                total));
  total.real_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return total;
}

}  // namespace

void add_chaos_options(CLI::App& command, ChaosCommandOptions& o) {
  command.add_flag(
      "--chaos", o.chaos,
      "Simulate a job's whole life instead, on several nodes with launchers, spares and restarts: "
      "each seed draws a job, of at most --ranks per node, and what fails in it. Its ranks compute a "
      "model with a few numbers");
  add_number(command, "--nodes", o.nodes, {1, 64}, "With --chaos: most nodes of a job")
      ->capture_default_str();
  add_number(command, "--spares", o.spares, {0, 64}, "With --chaos: most spares per node")
      ->capture_default_str();
  add_number(command, "--faults", o.faults, {1, 1000}, "With --chaos: most faults that are drawn for a job")
      ->capture_default_str();
  command.add_option("--replay", o.replay, "Run the schedule in this file, as --write makes one");
  command.add_option(
      "--write", o.write,
      "With --chaos or --replay: write the schedule of the first violation, or of the only run, "
      "to this file");
  command.add_flag("--shrink", o.shrink,
                   "With --chaos or --replay: make the schedule of the first violation as small as it gets");
  command.add_flag("--tell", o.tell, "With --chaos or --replay: tell what launchers and ranks do");
  std::vector<std::string> names;
  for (const auto& each : actors::kPlantedNames) names.emplace_back(each.name);
  add_choice(
      command, "--plant", o.plant, names,
      fmt::format("With --chaos or --replay: a bug that the job has on purpose, to see that it is found: {}",
                  fmt::join(names, ", ")))
      ->capture_default_str();
}

int refuse_chaos_options(const ChaosCommandOptions& o) {
  const auto option = lonely_option(o);
  if (o.is_wanted() || option.empty()) return 0;
  say_error("troupe simulate", fmt::format("{} needs --chaos or --replay FILE", option));
  return kUsageError;
}

int run_chaos_command(const ChaosCommandOptions& o) {
  const auto total = run_all(o);
  if (!total) {
    say_error("troupe simulate", total.error().message);
    return kUsageError;
  }
  const auto lacking = total->coverage.lacking();
  if (o.json) {
    fmt::print("{}", json_text({{"runs", total->runs},
                                {"violated", total->violated},
                                {"shown", total->violations},
                                {"coverage", json_of(total->coverage)},
                                {"events", total->events},
                                {"virtual_seconds", total->virtual_seconds},
                                {"real_seconds", total->real_seconds}}));
  } else if (total->runs > 1) {
    print(total->coverage);
    for (const auto& each : lacking) fmt::print("not met: {}\n", each);
    fmt::print("{} seeds from {}: {}; {:.1f} million events, {:.0f} virtual s\n", total->runs, o.seed,
               total->violated == 0 ? "no violation" : fmt::format("{} violate invariants", total->violated),
               static_cast<double>(total->events) / 1e6, total->virtual_seconds);
  }
  return total->violated == 0 ? 0 : 1;
}

}  // namespace troupe::apps
