#include "apps/troupe/plan/schedule_command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/command_line/command_line.hpp"
#include "apps/command_line/options.hpp"
#include "apps/command_line/say.hpp"
#include "apps/troupe/plan/schedule_report.hpp"

namespace troupe::apps {

void add_schedule_command(CLI::App& plan, int& exit_code) {
  auto* command = plan.add_subcommand("schedule", "What pipeline stages do, in order, and their bubble");
  const auto arguments = std::make_shared<ScheduleArguments>();  // owned by the command's callback
  add_choice(*command, "--kind", arguments->kind, {"gpipe", "1f1b", "interleaved", "zero_bubble"},
             "gpipe, 1f1b, interleaved or zero_bubble (backward in two parts)")
      ->capture_default_str();
  add_number(*command, "--stages", arguments->stages, {1, 1024}, "Pipeline stages")->capture_default_str();
  add_number(*command, "--chunks", arguments->chunks, {1, 1024}, "Model chunks per stage, interleaved only")
      ->capture_default_str();
  add_number(*command, "--microbatches", arguments->microbatches, {1, 65536}, "Microbatches per step")
      ->capture_default_str();
  constexpr core::Bounds<double> kTime{0, 1e9};
  add_number(*command, "--forward-ms", arguments->forward_ms, kTime, "Time of a chunk's forward")
      ->capture_default_str();
  add_number(*command, "--backward-ms", arguments->backward_ms, kTime,
             "Time of a chunk's backward, both parts; --weight-ms is one of them")
      ->capture_default_str();
  add_number(*command, "--weight-ms", arguments->weight_ms, kTime,
             "Time of the part of --backward-ms that computes weight gradients")
      ->capture_default_str();
  add_number(*command, "--transfer-ms", arguments->transfer_ms, kTime,
             "Time of a transfer from one stage to the next")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_option("--html", arguments->html, "Also write an HTML page with a drawing to this file");
  command->callback([arguments, &exit_code] {
    const auto report = report_schedule(*arguments);
    if (report) {
      fmt::print("{}", *report);
      return;
    }
    say_error("troupe plan schedule", report.error().message);
    exit_code = kUsageError;
  });
}

}  // namespace troupe::apps
