#include "apps/troupe/bench/pipeline_command.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/json_text.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/pipeline.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

struct PipelineFlags {
  PipelineBench bench;
  std::vector<std::string> schedules{"gpipe", "1f1b", "interleaved", "zero_bubble"};
  std::uint64_t kib = 1024;
  bool json = false;
};

void print_rows(std::span<const PipelineTime> times) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [schedule, seconds, bubble_share, theory] : times) {
    rows.push_back({{"schedule", core::name_of(schedule.kind)},
                    {"stages", schedule.stages},
                    {"chunks", schedule.chunks},
                    {"microbatches", schedule.microbatches},
                    {"clock", "simulated"},
                    {"seconds", seconds},
                    {"bubble_share", bubble_share},
                    {"theoretical_bubble_share", theory},
                    {"bubble_to_theory", bubble_share / theory}});
  }
  fmt::print("{}", json_text(rows, 1));
}

void print_lines(std::span<const PipelineTime> times) {
  fmt::print("{:<13}{:>7}{:>8}{:>14}{:>11}{:>10}{:>10}{:>8}\n", "schedule", "stages", "chunks",
             "microbatches", "step ms", "bubble", "theory", "ratio");
  for (const auto& [schedule, seconds, bubble_share, theory] : times) {
    fmt::print("{:<13}{:>7}{:>8}{:>14}{:>11.2f}{:>8.2f} %{:>8.2f} %{:>8.3f}\n", core::name_of(schedule.kind),
               schedule.stages, schedule.chunks, schedule.microbatches, seconds * 1e3, bubble_share * 100,
               theory * 100, bubble_share / theory);
  }
}

int run_pipeline_bench(PipelineFlags& flags) {
  const auto measured = [&]() -> core::Result<std::vector<PipelineTime>> {
    flags.bench.schedules.clear();
    for (const auto& name : flags.schedules)
      flags.bench.schedules.push_back(TRY(core::schedule_kind_from_name(name)));
    flags.bench.message_bytes = flags.kib << 10;
    return measure_pipelines(flags.bench);
  };
  const auto times = measured();
  if (!times) {
    say_error("troupe", times.error().message);
    return times.error().code == core::Errc::invalid_argument ? kUsageError : 1;
  }
  flags.json ? print_rows(*times) : print_lines(*times);
  return 0;
}

}  // namespace

void add_pipeline_bench(CLI::App& bench, int& exit_code) {
  CLI::App* const command = bench.add_subcommand(
      "pipeline", "Run pipeline schedules in simulated time and compare the bubble of each with theory");
  // Lives as long as the command's callbacks, which both hold it.
  const auto flags = std::make_shared<PipelineFlags>();
  constexpr core::Bounds<double> kTimes{0.001, 60'000};
  add_choices(*command, "--schedule", flags->schedules, {"gpipe", "1f1b", "interleaved", "zero_bubble"},
              "One or more of gpipe, 1f1b, interleaved and zero_bubble, with commas between them")
      ->capture_default_str();
  add_number(*command, "--stages", flags->bench.stages, {2, 64}, "Ranks, each with one stage")
      ->capture_default_str();
  add_number(*command, "--chunks", flags->bench.chunks, {1, 64},
             "Model chunks per stage, for interleaved schedules")
      ->capture_default_str();
  add_number(*command, "--microbatches", flags->bench.microbatches, {1, 1024}, "Microbatches per step")
      ->capture_default_str();
  auto& milliseconds = flags->bench.milliseconds;
  add_number(*command, "--forward-ms", milliseconds.forward, kTimes, "Time of a stage's forward")
      ->capture_default_str();
  add_number(*command, "--backward-ms", milliseconds.backward_input, kTimes,
             "Time of the part of a stage's backward that computes input gradients, without --weight-ms")
      ->capture_default_str();
  add_number(
      *command, "--weight-ms", milliseconds.backward_weight, kTimes,
      "Time of the part of a stage's backward that computes weight gradients, in addition to --backward-ms")
      ->capture_default_str();
  add_number(*command, "--message-kib", flags->kib, {1, 1 << 16}, "Size of what a stage sends")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print JSON instead of a table");
  command->callback([flags, &exit_code] { exit_code = run_pipeline_bench(*flags); });
}

}  // namespace troupe::apps
