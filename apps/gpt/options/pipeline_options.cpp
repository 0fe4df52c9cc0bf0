#include "apps/gpt/options/pipeline_options.hpp"

#include <algorithm>

#include "apps/command_line/options.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::ScheduleKind;

namespace {

/// As flags are written, with a hyphen.
std::string flag_name(ScheduleKind kind) {
  std::string name(core::name_of(kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

void add_pipeline_options(CLI::App& app, TrainerOptions& options) {
  add_number(app, "--pipeline-parallel", options.session.training.pipeline_parallel, {1, 65536},
             "Pipeline stages: ranks that share the layers of the model")
      ->capture_default_str();
  const auto take = [&options](const CLI::results_t& texts) {
    auto name = texts.front();
    std::replace(name.begin(), name.end(), '-', '_');
    options.pipeline.schedule = core::schedule_kind_from_name(name).value();
    return true;
  };
  const auto shown = [&options] { return flag_name(options.pipeline.schedule); };
  app.add_option(
         "--pipeline-schedule", take,
         "gpipe, 1f1b, interleaved (several --pipeline-chunks per stage) or zero-bubble (the weights' "
         "half of backward fills gaps)",
         false, shown)
      ->type_name("TEXT")
      ->check(apps::detail::one_of({"gpipe", "1f1b", "interleaved", "zero-bubble"}),
              "gpipe|1f1b|interleaved|zero-bubble")
      ->capture_default_str();
  add_number(app, "--pipeline-chunks", options.pipeline.chunks, {1, 65536},
             "Model chunks per stage, for interleaved schedules")
      ->capture_default_str();
}

core::Result<void> check_pipeline_options(const TrainerOptions& options, bool is_local) {
  const int stages = options.session.training.pipeline_parallel;
  const auto& [schedule, chunks] = options.pipeline;
  if (is_local && stages > 1) {
    return fail(Errc::invalid_argument,
                "--local trains in one process, found --pipeline-parallel {}; leave one of the two out",
                stages);
  }
  if (chunks > 1 && schedule != ScheduleKind::interleaved) {
    return fail(Errc::invalid_argument,
                "expected one chunk per stage with --pipeline-schedule {}, found --pipeline-chunks {}; use "
                "--pipeline-schedule interleaved",
                flag_name(schedule), chunks);
  }
  if (stages == 1 && (chunks > 1 || schedule != ScheduleKind::one_f_one_b)) {
    return fail(Errc::invalid_argument,
                "--pipeline-schedule and --pipeline-chunks are about stages, and there is one; add "
                "--pipeline-parallel, or leave them out");
  }
  return {};
}

void describe_pipeline(const TrainerOptions& options,
                       std::vector<std::pair<std::string, std::string>>& configuration) {
  const int stages = options.session.training.pipeline_parallel;
  if (stages == 1) return;
  const int chunks = options.pipeline.chunks;
  configuration.emplace_back("pipeline", fmt::format("{} stages{}, {}", stages,
                                                     chunks > 1 ? fmt::format(" of {} chunks", chunks) : "",
                                                     flag_name(options.pipeline.schedule)));
}

}  // namespace troupe::apps::gpt
