#include "apps/gpt/options/pipeline_options.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::ScheduleKind;

std::string flag_name(ScheduleKind kind) {
  std::string name(core::name_of(kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
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
