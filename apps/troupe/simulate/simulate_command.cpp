#include "apps/troupe/simulate/simulate_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/simulation/simulation.hpp"
#include "actors/simulation/tiny_trainer.hpp"
#include "apps/command_line/command_line.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/simulate/chaos_command.hpp"
#include "apps/troupe/simulate/small_blocks.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/options/training_table.hpp"
#include "core/random.hpp"
#include "posix/heap.hpp"

namespace troupe::apps {

namespace {

struct Options {
  int ranks = 4;
  std::int64_t steps = 5;
  core::TrainingOptions training{.bucket_elements = 64};
  bool draws_jobs = false;
  std::string gather_dtype;  // empty: parameters are f32
  int units = 4;
  int layer_milliseconds = 0;
  core::DeclaredOrder order{};
  bool learns_order = false;
  bool weights = false;
  std::uint64_t seed = 0;
  int seeds = 1;
  std::vector<std::string> kills;
  bool ignores_order = false;
  bool json = false;
  ChaosCommandOptions chaos;
};

/// The result of one seed.
struct Run {
  std::uint64_t seed = 0;
  std::string job;  ///< what was drawn for it, where something was
  actors::SimulationReport report;
  std::uint64_t state_hash = 0;
  double real_seconds = 0;
};

/// "RANK@MILLISECONDS"
core::Result<actors::SimulatedFault> parse_kill(const std::string& text, int ranks) {
  const std::size_t sign = std::min(text.find('@'), text.size());
  const auto rank = core::parse_number<int>(text.substr(0, sign), {0, ranks - 1});
  const auto at = core::parse_number<double>(text.substr(std::min(sign + 1, text.size())), {0, 1e9});
  if (!rank || !at) {
    return core::fail(core::Errc::invalid_argument,
                      "--kill {} is not RANK@MILLISECONDS with a rank from 0 to {}, for example 1@2.5",
                      core::quoted_excerpt(text), ranks - 1);
  }
  auto moment = std::chrono::nanoseconds(static_cast<std::int64_t>(*at * 1e6));
  return actors::SimulatedFault{actors::SimulatedFault::Kind::kill, {*rank}, moment, 1};
}

constexpr std::string_view kAny = "any";

/// A strategy, or that each seed draws one.
core::OptionValue strategy_or_any(Options& o, core::OptionValue strategy) {
  strategy.set = [&o, set = strategy.set](std::string_view given) -> core::Result<void> {
    o.draws_jobs = given == kAny;
    return o.draws_jobs ? core::Result<void>{} : set(given);
  };
  strategy.choices += "|any";
  return strategy;
}

/// The strategies that run on so many copies of the optimizer.
std::vector<core::Strategy> strategies_of(int instances) {
  using enum core::Strategy;
  if (instances > 1) return {zero1, zero2, zero3, hsdp, hfsdp};
  return {ddp, zero1, zero2, zero3, hsdp, hfsdp};
}

std::vector<core::UnitIndex> shuffled(int units, std::uint64_t seed, std::string_view name) {
  const core::CounterRandom random(seed, name);
  std::vector<core::UnitIndex> order;
  for (std::uint32_t unit = 0; unit < static_cast<std::uint32_t>(units); ++unit) order.push_back({unit});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.bits(i) % i]);
  return order;
}

std::string text_of(const std::vector<core::UnitIndex>& units) {
  std::string text;
  for (const auto unit : units) text += fmt::format("{}{}", text.empty() ? "" : ",", unit.value);
  return text;
}

/// A job that the seed draws: mesh, strategy, lanes, schedule, order of units and, now and then, a rank that
/// dies.
Options drawn(Options o, std::uint64_t seed) {
  const core::CounterRandom random(seed, "simulated job");
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t bound) { return static_cast<int>(random.bits(draws++) % bound); };
  auto& training = o.training;
  if (training.context_pieces > 0) {
    do {
      training.context_parallel = 1 + below(static_cast<std::size_t>(training.context_pieces));
    } while (training.context_pieces % training.context_parallel != 0 || training.context_parallel > o.ranks);
  }
  const int most = std::max(1, o.ranks / training.context_parallel);
  o.ranks = 1 + below(static_cast<std::size_t>(most));
  do {
    training.optimizer_instances = 1 + below(static_cast<std::size_t>(o.ranks));
  } while (o.ranks % training.optimizer_instances != 0);
  const auto strategies = strategies_of(training.optimizer_instances);
  training.strategy = strategies[static_cast<std::size_t>(below(strategies.size()))];
  training.lanes = o.ranks + below(6);
  training.overlap = below(4) != 0;
  training.gathered_units = 1 + below(3);
  o.units = 1 + below(6);
  if (o.kills.empty() && below(3) == 0)
    o.kills = {fmt::format("{}@{}", below(static_cast<std::size_t>(o.ranks)), below(4000) / 1000.0)};
  o.ranks *= training.context_parallel;
  if (below(2) == 0) o.order.forward = shuffled(o.units, seed, "order of forward");
  if (below(3) == 0) o.order.backward = shuffled(o.units, seed, "order of backward");
  o.learns_order = below(2) == 0;
  if (below(2) == 0) o.weights = true;
  return o;
}

core::Result<Run> simulate(const Options& o, std::uint64_t seed) {
  actors::TinyTrainerOptions trainer;
  trainer.layers = o.units;
  trainer.weighs = o.weights;
  if (o.layer_milliseconds > 0) trainer.layer_time = std::chrono::milliseconds(o.layer_milliseconds);
  trainer.session.training = o.training;
  (o.learns_order ? trainer.learned : trainer.session.order) = o.order;
  if (!o.gather_dtype.empty()) {
    trainer.gather_dtype = TRY(core::dtype_from_name(o.gather_dtype));
    trainer.width = 1100;  // shards of several ranks cut it
  }
  trainer.session.training.clip_norm = 1;
  trainer.steps = o.steps;
  actors::SimulationOptions options;
  options.ranks = {o.ranks};
  options.seed = seed;
  options.checks_order = !o.ignores_order;
  for (const auto& kill : o.kills) options.faults.push_back(TRY(parse_kill(kill, o.ranks)));
  Run run;
  run.seed = seed;
  auto began = std::chrono::steady_clock::now();
  actors::Simulation simulation(options);
  run.report = simulation.run([&](actors::SimulatedRank& rank) -> core::Result<void> {
    auto result = TRY(actors::simulate_tiny_rank(rank, trainer));
    if (rank.rank().value == 0) run.state_hash = result.state_hash;
    return {};
  });
  if (options.faults.empty()) {
    for (const auto& result : run.report.results) {
      if (!result)
        run.report.violations.push_back("LV-2: a rank failed without a fault: " + result.error().message);
    }
  }
  run.real_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return run;
}

nlohmann::json to_json(const Run& run) {
  std::vector<std::string> failures;
  for (const auto& result : run.report.results) {
    if (!result) failures.push_back(result.error().message);
  }
  return {{"seed", run.seed},
          {"trace_hash", fmt::format("{:016x}", run.report.trace_hash)},
          {"virtual_seconds", std::chrono::duration<double>(run.report.virtual_time).count()},
          {"steps_committed", run.report.steps_committed},
          {"events", run.report.events},
          {"messages", run.report.messages},
          {"job", run.job},
          {"violations", run.report.violations},
          {"failures", failures},
          {"final_state_hash", fmt::format("{:016x}", run.state_hash)},
          {"real_seconds", run.real_seconds}};
}

void print(const Run& run) {
  if (!run.job.empty()) fmt::print("seed {}: {}\n", run.seed, run.job);
  fmt::print("seed {}: {} steps committed in {:.6f} virtual s, {} events, trace {:016x}, state {:016x}\n",
             run.seed, run.report.steps_committed,
             std::chrono::duration<double>(run.report.virtual_time).count(), run.report.events,
             run.report.trace_hash, run.state_hash);
  for (const auto& violation : run.report.violations) fmt::print("  violated: {}\n", violation);
  for (std::size_t rank = 0; rank < run.report.results.size(); ++rank) {
    const auto& result = run.report.results[rank];
    if (!result) fmt::print("  rank {} ended: {}\n", rank, result.error().message);
  }
}

/// `alone`: what one rank computes with so many lanes, units and weights or not, as far as it is known.
core::Result<Run> one_seed(const Options& o, std::uint64_t seed,
                           std::map<std::tuple<int, int, bool>, std::uint64_t>& alone) {
  if (!o.draws_jobs) return simulate(o, seed);
  const auto job = drawn(o, seed);
  const auto& training = job.training;
  auto run = TRY(simulate(job, seed));
  run.job = fmt::format("{} on {}x{} ranks, {} lanes, {} units", core::name_of(training.strategy),
                        training.optimizer_instances, job.ranks / training.optimizer_instances,
                        training.lanes, job.units);
  if (const int pieces = training.pieces_of_lane(); pieces > 1)
    run.job += fmt::format(", {} pieces, {} on a rank", pieces, training.own_pieces());
  if (!job.order.forward.empty()) run.job += ", forward " + text_of(job.order.forward);
  if (!job.order.backward.empty()) run.job += ", backward " + text_of(job.order.backward);
  if (!job.order.empty() && job.learns_order) run.job += ", learned";
  if (job.weights) run.job += ", weighted lanes";
  if (!job.kills.empty()) run.job += ", kill " + job.kills.front();
  if (!job.kills.empty() || training.numerics != core::Numerics::ordered) return run;
  const std::tuple key(training.lanes, job.units, job.weights);
  auto known = alone.find(key);
  if (known == alone.end()) {
    auto reference = job;
    reference.training.optimizer_instances = 1;
    reference.training.context_pieces = training.pieces_of_lane();
    reference.training.context_parallel = 1;
    reference.ranks = 1;
    reference.training.strategy = core::Strategy::ddp;
    reference.order = {};
    reference.learns_order = false;
    known = alone.emplace(key, TRY(simulate(reference, 0)).state_hash).first;
  }
  if (run.state_hash != known->second) {
    run.report.violations.push_back(
        fmt::format("NU-1: {} ends in {:016x}, one rank in {:016x}", run.job, run.state_hash, known->second));
  }
  return run;
}

int run_command(const Options& o) {
  constexpr std::size_t kBytesOfUnit = std::size_t{24} << 10;  // on each rank
  posix::expect_heap(static_cast<std::size_t>(o.ranks) * static_cast<std::size_t>(o.units + 8) *
                     kBytesOfUnit);
  keep_small_blocks();
  bool violated = false;
  nlohmann::json all = nlohmann::json::array();
  std::map<std::tuple<int, int, bool>, std::uint64_t> alone;
  for (int i = 0; i < o.seeds; ++i) {
    auto run = one_seed(o, o.seed + static_cast<std::uint64_t>(i), alone);
    if (!run) {
      say_error("troupe simulate", run.error().message);
      return kUsageError;
    }
    violated = violated || !run->report.violations.empty();
    if (o.json) all.push_back(to_json(*run));
    bool quiet = o.seeds > 1 && run->report.violations.empty();
    if (!o.json && !quiet) print(*run);
  }
  if (o.json) fmt::print("{}", json_text(o.seeds == 1 ? all[0] : all));
  if (!o.json && o.seeds > 1) {
    fmt::print("{} seeds from {}: {}\n", o.seeds, o.seed,
               violated ? "invariants were violated" : "no violation");
  }
  return violated ? 1 : 0;
}

int run_chaos(const Options& o) {
  auto chaos = o.chaos;
  chaos.ranks = o.ranks;
  chaos.seed = o.seed;
  chaos.seeds = o.seeds;
  chaos.json = o.json;
  return run_chaos_command(chaos);
}

}  // namespace

void add_simulate_command(CLI::App& troupe, int& exit_code) {
  auto* command = troupe.add_subcommand("simulate", "Run a whole job in one thread under virtual time");
  auto o = std::make_shared<Options>();  // shared by the option's targets and the callback
  add_number(*command, "--ranks", o->ranks, {1, 4096}, "Number of ranks")->capture_default_str();
  add_number(*command, "--steps", o->steps, {1, 1'000'000}, "Optimizer steps")->capture_default_str();
  const auto common = core::common_options(o->training);
  add_value(
      *command, "--strategy", strategy_or_any(*o, core::option_named(common, "strategy").value),
      "ddp, zero1, zero2, zero3, hsdp or hfsdp; any: each seed draws a job of at most --ranks ranks, its "
      "strategy, mesh, lanes, their weights, order of units (declared or learned) and a rank that may "
      "die, and the ranks that share --context-pieces, and its bits are compared with those of one rank")
      ->capture_default_str();
  add_number(*command, "--units", o->units, {1, 1024}, "Layers of the model")->capture_default_str();
  add_number(
      *command, "--layer-ms", o->layer_milliseconds, {0, 60'000},
      "Virtual milliseconds that a layer's forward takes, and so does its backward; 0: a twentieth of one")
      ->capture_default_str();
  for (const auto* name : {"optimizer-instances", "gathered-units", "numerics", "wire-dtype",
                           "context-parallel", "context-pieces", "lanes", "microbatches"})
    add_common(*command, common, name);
  add_choice(*command, "--gather-dtype", o->gather_dtype, {"f8_e4m3", "f8_e5m2"},
             "Make weights bf16 and gather them in this dtype, with one scale per 32 elements");
  command->add_flag(
      "--weights", o->weights,
      "Give lanes uneven weights, some of them 0; with --strategy any, half of the jobs have them");
  add_value(*command, "--no-overlap", core::flag(o->training.overlap, false),
            "Do not overlap communication with forward and backward");
  add_number(*command, "--seed", o->seed, kAnyNumber<std::uint64_t>, "Seed of interleavings, delays and data")
      ->capture_default_str();
  add_number(*command, "--seeds", o->seeds, {1, 10'000'000}, "Number of consecutive seeds to run")
      ->capture_default_str();
  command->add_option("--kill", o->kills, "RANK@MILLISECONDS: the rank's process dies at that virtual time");
  command->add_flag(
      "--ignore-order", o->ignores_order,
      "Do not check that whatever touches the same device memory is ordered: for measuring what "
      "the check costs");
  command->add_flag("--json", o->json, "Print JSON");
  add_chaos_options(*command, o->chaos);
  command->callback([o, &exit_code] {
    exit_code = refuse_chaos_options(o->chaos);
    if (exit_code == 0) exit_code = o->chaos.is_wanted() ? run_chaos(*o) : run_command(*o);
  });
}

}  // namespace troupe::apps
