#include "apps/troupe/bench/bench_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/troupe/bench/collectives.hpp"

namespace troupe::apps {
namespace {

struct BenchFlags {
  CollectiveBench bench;
  bool json = false;
};

void print_json(std::span<const CollectiveTime> times) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CollectiveTime& time : times) {
    rows.push_back({{"backend", time.backend},
                    {"operation", time.operation},
                    {"ranks", time.ranks},
                    {"bytes", time.bytes},
                    {"seconds", time.seconds}});
  }
  fmt::print("{}\n", rows.dump(1));
}

/// The time of the same case with another back-end, or 0.
double seconds_of(std::span<const CollectiveTime> times, const CollectiveTime& like,
                  std::string_view backend) {
  const auto found = std::ranges::find_if(times, [&](const CollectiveTime& time) {
    return time.backend == backend && time.operation == like.operation && time.ranks == like.ranks &&
           time.bytes == like.bytes;
  });
  return found == times.end() ? 0 : found->seconds;
}

void print_table(std::span<const CollectiveTime> times) {
  fmt::print("{:<16}{:>6}{:>12}{:>20}{:>12}{:>8}{:>22}\n", "operation", "ranks", "bytes", "shared_memory us",
             "gloo us", "ratio", "shared_memory GB/s");
  for (const CollectiveTime& time : times) {
    if (time.backend != "shared_memory") continue;
    const double gloo = seconds_of(times, time, "gloo");
    fmt::print("{:<16}{:>6}{:>12}{:>20.1f}{:>12.1f}{:>8.1f}{:>22.2f}\n", time.operation, time.ranks,
               time.bytes, time.seconds * 1e6, gloo * 1e6, gloo / time.seconds,
               static_cast<double>(time.bytes) / time.seconds / 1e9);
  }
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure this build on this machine");
  bench->require_subcommand(1);
  CLI::App* const collectives =
      bench->add_subcommand("collectives", "Measure shared_memory and gloo against each other");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<BenchFlags>();
  collectives->add_option("--ranks", flags->bench.ranks, "Numbers of ranks, for example 2,4")
      ->delimiter(',')
      ->capture_default_str();
  collectives
      ->add_option("--operations", flags->bench.operations, "Operations, for example all_reduce,barrier")
      ->delimiter(',')
      ->capture_default_str();
  collectives->add_option("--bytes", flags->bench.bytes, "Sizes of the whole tensor")
      ->delimiter(',')
      ->capture_default_str();
  collectives->add_flag("--json", flags->json, "Print JSON instead of a table");
  collectives->callback([flags, &exit_code] {
    const auto times = measure_collectives(flags->bench);
    if (!times) {
      fmt::print(stderr, "troupe: {}\n", times.error().message);
      exit_code = times.error().code == core::Errc::invalid_argument ? 2 : 1;
      return;
    }
    if (flags->json) return print_json(*times);
    print_table(*times);
  });
}

}  // namespace troupe::apps
