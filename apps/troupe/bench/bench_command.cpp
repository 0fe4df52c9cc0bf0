#include "apps/troupe/bench/bench_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/checkpoint.hpp"
#include "apps/troupe/bench/collectives.hpp"
#include "apps/troupe/bench/kernels.hpp"
#include "apps/troupe/bench/load.hpp"
#include "apps/troupe/bench/moe.hpp"
#include "apps/troupe/bench/pipeline_command.hpp"
#include "apps/troupe/bench/step.hpp"
#include "core/errors.hpp"

namespace troupe::apps {
namespace {

constexpr core::Bounds<int> kRanks{1, 256};
constexpr core::Bounds<int> kRepeats{1, 10'000};
constexpr core::Bounds<std::uint64_t> kMib{1, 1 << 16};
constexpr core::Bounds<double> kMilliseconds{0, 60'000};

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
  fmt::print("{}", json_text(rows, 1));
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
  fmt::print("{:<16}{:>6}{:>12}{:>20}{:>12}{:>8}{:>22}{:>20}\n", "operation", "ranks", "bytes",
             "shared_memory us", "tcp us", "ratio", "shared_memory GB/s", "tcp % of loopback");
  for (const CollectiveTime& time : times) {
    if (time.backend != "shared_memory") continue;
    const double tcp = seconds_of(times, time, "tcp");
    fmt::print("{:<16}{:>6}{:>12}{:>20.1f}{:>12.1f}{:>8.1f}{:>22.2f}{:>20.0f}\n", time.operation, time.ranks,
               time.bytes, time.seconds * 1e6, tcp * 1e6, tcp / time.seconds,
               static_cast<double>(time.bytes) / time.seconds / 1e9,
               100 * seconds_of(times, time, "loopback") / tcp);
  }
}

struct StepFlags {
  StepBench bench;
  std::vector<std::string> strategies{"zero1"};
  std::string dtype = "f32";
  std::string gather_dtype;  // empty: as they are
  bool json = false;
};

void print_json(std::span<const StepTime> times) {
  nlohmann::json rows = nlohmann::json::array();
  for (const StepTime& time : times) {
    rows.push_back({{"strategy", core::name_of(time.strategy)},
                    {"overlap", time.overlap},
                    {"step_seconds", time.step_seconds},
                    {"compute_seconds", time.compute_seconds},
                    {"communication_seconds", time.communication_seconds},
                    {"exposed_seconds", time.exposed_seconds},
                    {"exposed_communication_seconds", time.exposed_communication_seconds},
                    {"launch_p50_microseconds", time.launch_p50_microseconds},
                    {"launch_p99_microseconds", time.launch_p99_microseconds},
                    {"launches", time.launches},
                    {"messages_per_step", time.messages_per_step},
                    {"device_bytes", time.device_bytes},
                    {"bytes_sent", time.bytes_sent}});
  }
  fmt::print("{}", json_text(rows, 1));
}

void print_table(std::span<const StepTime> times) {
  fmt::print("{:<9}{:<9}{:>9}{:>12}{:>16}{:>13}{:>16}{:>15}{:>15}{:>15}{:>12}{:>10}\n", "strategy", "overlap",
             "step ms", "compute ms", "collectives ms", "(exposed ms)", "other waits ms", "launch p50 us",
             "launch p99 us", "messages/step", "memory MiB", "sent MiB");
  for (const StepTime& time : times) {
    fmt::print(
        "{:<9}{:<9}{:>9.2f}{:>12.2f}{:>16.2f}{:>13.2f}{:>16.2f}{:>15.1f}{:>15.1f}{:>15.1f}{:>12.1f}"
        "{:>10.2f}\n",
        core::name_of(time.strategy), time.overlap ? "on" : "off", time.step_seconds * 1e3,
        time.compute_seconds * 1e3, time.communication_seconds * 1e3,
        time.exposed_communication_seconds * 1e3,
        (time.exposed_seconds - time.exposed_communication_seconds) * 1e3, time.launch_p50_microseconds,
        time.launch_p99_microseconds, time.messages_per_step,
        static_cast<double>(time.device_bytes) / (1 << 20), static_cast<double>(time.bytes_sent) / (1 << 20));
  }
}

int run_step_bench(StepFlags& flags) {
  const auto measured = [&]() -> core::Result<std::vector<StepTime>> {
    flags.bench.strategies.clear();
    for (const auto& name : flags.strategies) {
      flags.bench.strategies.push_back(TRY(core::strategy_from_name(name)));
    }
    flags.bench.dtype = TRY(core::dtype_from_name(flags.dtype));
    if (!flags.gather_dtype.empty()) {
      flags.bench.gather_dtype = TRY(core::dtype_from_name(flags.gather_dtype));
      if (flags.bench.dtype != core::DType::bf16) {
        return core::fail(core::Errc::invalid_argument,
                          "--gather-dtype {} is for bf16 parameters; give --dtype bf16", flags.gather_dtype);
      }
    }
    return measure_steps(flags.bench);
  };
  const auto times = measured();
  if (!times) {
    say_error("troupe", times.error().message);
    return times.error().code == core::Errc::invalid_argument ? kUsageError : 1;
  }
  flags.json ? print_json(*times) : print_table(*times);
  return 0;
}

void add_step_bench(CLI::App& bench, int& exit_code) {
  CLI::App* const step = bench.add_subcommand(
      "step",
      "Measure training steps without and with overlap: exposed communication and the runtime's own cost");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<StepFlags>();
  add_number(*step, "--ranks", flags->bench.ranks, kRanks, "Number of ranks")->capture_default_str();
  add_choices(*step, "--strategy", flags->strategies, {"ddp", "zero1", "zero2", "zero3"},
              "One or more of ddp, zero1, zero2 and zero3, with commas between them")
      ->capture_default_str();
  add_choice(*step, "--collectives", flags->bench.collectives, {"automatic", "shared_memory", "tcp"},
             "automatic, shared_memory or tcp")
      ->capture_default_str();
  const auto common = core::common_options(flags->bench.training);
  for (const auto* name : {"numerics", "wire-dtype", "bucket-elements"}) add_common(*step, common, name);
  add_choice(*step, "--dtype", flags->dtype, {"f32", "bf16"}, "Dtype of parameters")->capture_default_str();
  add_choice(*step, "--gather-dtype", flags->gather_dtype, {"f8_e4m3", "f8_e5m2"},
             "Dtype in which bf16 parameters are gathered, with one scale per 32 elements");
  add_number(*step, "--layers", flags->bench.layers, {1, 4096}, "Layers of the model")->capture_default_str();
  add_number(*step, "--layer-elements", flags->bench.layer_elements, {1, 1 << 28}, "Parameters of a layer")
      ->capture_default_str();
  add_number(
      *step, "--layer-milliseconds", flags->bench.layer_milliseconds, kMilliseconds,
      "Simulated time of a layer's forward (backward takes twice that); the processor is idle meanwhile")
      ->capture_default_str();
  step->add_flag("--busy", flags->bench.busy, "Compute in that time: a processor that was idle wakes late");
  add_number(*step, "--steps", flags->bench.steps, {1, 1'000'000}, "Steps to measure")->capture_default_str();
  step->add_flag("--json", flags->json, "Print JSON instead of a table");
  step->callback([flags, &exit_code] { exit_code = run_step_bench(*flags); });
}

struct CheckpointFlags {
  CheckpointBench bench;
  std::uint64_t mib = 768;
  std::uint64_t staging_mib = 256;
  bool json = false;
};

void print_json(const CheckpointTime& time) {
  const nlohmann::ordered_json row{{"bytes", time.bytes},
                                   {"stall_seconds", time.stall_seconds},
                                   {"memcpy_seconds", time.memcpy_seconds},
                                   {"durable_seconds", time.durable_seconds},
                                   {"plain_write_seconds", time.plain_write_seconds},
                                   {"load_seconds", time.load_seconds},
                                   {"plain_read_seconds", time.plain_read_seconds},
                                   {"peak_extra_bytes", time.peak_extra_bytes},
                                   {"budget_bytes", time.budget_bytes},
                                   {"first_stall_seconds", time.first_stall_seconds},
                                   {"step_seconds", time.step_seconds}};
  fmt::print("{}", json_text(row, -1));
}

void print_table(const CheckpointTime& time) {
  const auto line = [&](const char* what, double seconds, const char* peer, double plain) {
    fmt::print("{:<18}{:>10.1f} ms {:>8.2f} GB/s   {:<16}{:>10.1f} ms   {:>5.2f} x\n", what, seconds * 1e3,
               static_cast<double>(time.bytes) / seconds / 1e9, peer, plain * 1e3, seconds / plain);
  };
  fmt::print("{} bytes, {} for staging; a step takes {:.1f} ms\n", time.bytes, time.budget_bytes,
             time.step_seconds * 1e3);
  line("stall", time.stall_seconds, "memcpy", time.memcpy_seconds);
  line("durable", time.durable_seconds, "plain write", time.plain_write_seconds);
  line("load", time.load_seconds, "plain read", time.plain_read_seconds);
  fmt::print("extra memory at its peak: {} bytes\n", time.peak_extra_bytes);
}

void add_checkpoint_bench(CLI::App& bench, int& exit_code) {
  CLI::App* const command = bench.add_subcommand(
      "checkpoint", "Measure saves and loads against a plain loop that copies, writes, reads");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<CheckpointFlags>();
  add_number(*command, "--mib", flags->mib, kMib, "State to save, in MiB")->capture_default_str();
  add_number(*command, "--staging-mib", flags->staging_mib, kMib,
             "Memory for copies that are not on disk yet, in MiB")
      ->capture_default_str();
  add_number(
      *command, "--layer-milliseconds", flags->bench.layer_milliseconds, kMilliseconds,
      "Simulated time of the forward of each of 16 layers (backward takes twice that); the processor is "
      "idle meanwhile")
      ->capture_default_str();
  add_number(*command, "--repeats", flags->bench.repeats, kRepeats, "Saves and loads; the median is printed")
      ->capture_default_str();
  command->add_option("--directory", flags->bench.directory,
                      "Where to write; by default the temporary directory");
  command->add_flag("--json", flags->json, "Print JSON instead of a table");
  command->callback([flags, &exit_code] {
    flags->bench.bytes = flags->mib << 20;
    flags->bench.staging_bytes = flags->staging_mib << 20;
    const auto time = measure_checkpoints(flags->bench);
    if (!time) {
      say_error("troupe", time.error().message);
      exit_code = time.error().code == core::Errc::invalid_argument ? kUsageError : 1;
      return;
    }
    flags->json ? print_json(*time) : print_table(*time);
  });
}

struct LoadFlags {
  LoadBench bench;
  std::uint64_t mib = 384;
  bool json = false;
};

void print_json(std::span<const LoadTime> times) {
  nlohmann::json rows = nlohmann::json::array();
  for (const LoadTime& time : times) {
    rows.push_back({{"ranks", time.ranks},
                    {"strategy", core::name_of(time.strategy)},
                    {"cached", time.cached},
                    {"read_seconds", time.read_seconds},
                    {"exchange_seconds", time.exchange_seconds}});
  }
  fmt::print("{}", json_text(rows, 1));
}

void print_table(std::span<const LoadTime> times) {
  fmt::print("{:<7}{:<10}{:<18}{:>9}{:>13}{:>17}\n", "ranks", "strategy", "files", "read ms", "exchange ms",
             "exchange / read");
  for (const LoadTime& time : times) {
    fmt::print("{:<7}{:<10}{:<18}{:>9.1f}{:>13.1f}{:>17.2f}\n", time.ranks, core::name_of(time.strategy),
               time.cached ? "in the page cache" : "on the disk", time.read_seconds * 1e3,
               time.exchange_seconds * 1e3, time.exchange_seconds / time.read_seconds);
  }
}

void add_load_bench(CLI::App& bench, int& exit_code) {
  CLI::App* const command = bench.add_subcommand(
      "load", "Measure how ranks load a checkpoint: each for itself, and reading once and exchanging");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<LoadFlags>();
  add_number(*command, "--mib", flags->mib, kMib, "State to load, in MiB")->capture_default_str();
  add_numbers(*command, "--ranks", flags->bench.ranks, kRanks, "Numbers of ranks to measure, for example 2,4")
      ->capture_default_str();
  add_number(*command, "--repeats", flags->bench.repeats, kRepeats, "Loads; the median is printed")
      ->capture_default_str();
  command->add_option("--directory", flags->bench.directory,
                      "Where the checkpoint is; by default in the temporary directory");
  command->add_flag("--json", flags->json, "Print JSON instead of a table");
  command->callback([flags, &exit_code] {
    flags->bench.bytes = flags->mib << 20;
    const auto times = measure_loads(flags->bench);
    if (!times) {
      say_error("troupe", times.error().message);
      exit_code = times.error().code == core::Errc::invalid_argument ? kUsageError : 1;
      return;
    }
    flags->json ? print_json(*times) : print_table(*times);
  });
}

struct MoeFlags {
  MoeBench bench;
  bool json = false;
};

void print_json(const MoeTime& time) {
  const nlohmann::ordered_json row{{"bytes", time.bytes},
                                   {"own_bytes", time.own_bytes},
                                   {"dispatch_seconds", time.dispatch_seconds},
                                   {"combine_seconds", time.combine_seconds},
                                   {"counts_seconds", time.counts_seconds},
                                   {"sum_seconds", time.sum_seconds},
                                   {"plain_seconds", time.plain_seconds},
                                   {"ratio", time.ratio()},
                                   {"shared_expert_seconds", time.shared_seconds},
                                   {"exchange_seconds", time.exchange_seconds},
                                   {"both_seconds", time.both_seconds},
                                   {"overlapped_share", time.overlapped_share()}};
  fmt::print("{}", json_text(row, -1));
}

void print_table(const MoeTime& time) {
  fmt::print("rows of {} bytes from a rank and back, {} of them to itself\n", time.bytes, time.own_bytes);
  fmt::print("dispatch {:.2f} ms (counts {:.2f} ms), combine {:.2f} ms (sums {:.2f} ms)\n",
             time.dispatch_seconds * 1e3, time.counts_seconds * 1e3, time.combine_seconds * 1e3,
             time.sum_seconds * 1e3);
  fmt::print("two plain all_to_alls of the same bytes {:.2f} ms: {:.2f} x\n", time.plain_seconds * 1e3,
             time.ratio());
  fmt::print(
      "exchange {:.2f} ms beside a shared expert of {:.2f} ms: {:.2f} ms together, {:.0f} % overlapped\n",
      time.exchange_seconds * 1e3, time.shared_seconds * 1e3, time.both_seconds * 1e3,
      time.overlapped_share() * 1e2);
}

void add_moe_bench(CLI::App& bench, int& exit_code) {
  CLI::App* const command = bench.add_subcommand(
      "moe", "Measure how tokens go to experts and come back, against plain all_to_alls of the same bytes");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<MoeFlags>();
  add_number(*command, "--ranks", flags->bench.ranks, kRanks, "Number of ranks")->capture_default_str();
  add_choice(*command, "--collectives", flags->bench.collectives, {"shared_memory", "tcp"},
             "shared_memory or tcp")
      ->capture_default_str();
  add_number(*command, "--tokens", flags->bench.tokens, {1, 1 << 20}, "Tokens per rank")
      ->capture_default_str();
  add_number(*command, "--width", flags->bench.width, {1, 1 << 16}, "fp32 elements per token")
      ->capture_default_str();
  add_number(*command, "--experts", flags->bench.experts, {1, 4096}, "Experts on all ranks together")
      ->capture_default_str();
  add_number(*command, "--experts-per-token", flags->bench.choices, {1, 4096},
             "Experts that each token goes to")
      ->capture_default_str();
  add_number(*command, "--repeats", flags->bench.repeats, kRepeats, "Repetitions; the median is printed")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON instead of a table");
  command->callback([flags, &exit_code] {
    const auto time = measure_moe(flags->bench);
    if (!time) {
      say_error("troupe", time.error().message);
      exit_code = time.error().code == core::Errc::invalid_argument ? kUsageError : 1;
      return;
    }
    flags->json ? print_json(*time) : print_table(*time);
  });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure this build on this machine");
  bench->require_subcommand(1);
  add_step_bench(*bench, exit_code);
  add_checkpoint_bench(*bench, exit_code);
  add_load_bench(*bench, exit_code);
  add_moe_bench(*bench, exit_code);
  add_kernel_bench(*bench, exit_code);
  add_pipeline_bench(*bench, exit_code);
  CLI::App* const collectives = bench->add_subcommand(
      "collectives", "Measure shared_memory and tcp against each other, and tcp against plain sockets");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<BenchFlags>();
  add_numbers(*collectives, "--ranks", flags->bench.ranks, kRanks,
              "Numbers of ranks to measure, for example 2,4")
      ->capture_default_str();
  add_choices(*collectives, "--operations", flags->bench.operations, collective_names(),
              "Operations, for example all_reduce,barrier")
      ->capture_default_str();
  add_numbers(*collectives, "--bytes", flags->bench.bytes, {4, 1 << 30}, "Sizes of the whole tensor")
      ->capture_default_str();
  collectives->add_flag("--json", flags->json, "Print JSON instead of a table");
  collectives->callback([flags, &exit_code] {
    const auto times = measure_collectives(flags->bench);
    if (!times) {
      say_error("troupe", times.error().message);
      exit_code = times.error().code == core::Errc::invalid_argument ? kUsageError : 1;
      return;
    }
    if (flags->json) return print_json(*times);
    print_table(*times);
  });
}

}  // namespace troupe::apps
