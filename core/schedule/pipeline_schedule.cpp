#include "core/schedule/pipeline_schedule.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {

namespace {

constexpr int kMost = 1 << 20;
constexpr std::int64_t kMostPasses = std::int64_t{1} << 24;
constexpr std::array kKinds{
    std::pair{ScheduleKind::gpipe, "gpipe"}, std::pair{ScheduleKind::one_f_one_b, "1f1b"},
    std::pair{ScheduleKind::interleaved, "interleaved"}, std::pair{ScheduleKind::zero_bubble, "zero_bubble"}};

using Passes = std::vector<PipelinePass>;

/// The i-th forward of a stage, or with chunks counted from the last its i-th backward: a group of as many
/// microbatches as there are stages goes through all chunks before the next.
PipelinePass in_turn(PassKind kind, int i, const ScheduleOptions& options) {
  const int group = options.stages * options.chunks;
  const int chunk = i % group / options.stages;
  return {kind, i / group * options.stages + i % options.stages,
          kind == PassKind::forward ? chunk : options.chunks - 1 - chunk};
}

/// 1F1B with any number of chunks; with all forwards first it is GPipe.
Passes plan_alternating(const ScheduleOptions& options, int stage) {
  const bool is_plain = options.chunks == 1;
  const int all = options.microbatches * options.chunks, ahead = warm_up_passes(options, stage);
  const auto pass = [&](PassKind kind, int i) {
    return is_plain ? PipelinePass{kind, i, 0} : in_turn(kind, i, options);
  };
  Passes passes;
  for (int i = 0; i < ahead; ++i) passes.push_back(pass(PassKind::forward, i));
  for (int i = 0; i < all; ++i) {
    if (ahead + i < all) passes.push_back(pass(PassKind::forward, ahead + i));
    passes.push_back(pass(PassKind::backward, i));
  }
  return passes;
}

/// The weights' backward of a stage lags that of its inputs by as many microbatches as there are stages
/// before it, so that every stage keeps as many as there are stages.
Passes plan_zero_bubble(const ScheduleOptions& options, int stage) {
  const int all = options.microbatches, ahead = warm_up_passes(options, stage);
  Passes passes;
  for (int i = 0; i < ahead; ++i) passes.push_back({PassKind::forward, i, 0});
  for (int i = 0; i < all; ++i) {
    if (ahead + i < all) passes.push_back({PassKind::forward, ahead + i, 0});
    passes.push_back({PassKind::backward_input, i, 0});
    if (i >= stage) passes.push_back({PassKind::backward_weight, i - stage, 0});
  }
  for (int i = std::max(0, all - stage); i < all; ++i) passes.push_back({PassKind::backward_weight, i, 0});
  return passes;
}

Result<void> check(const ScheduleOptions& options) {
  for (const auto& [name, value] : {std::pair{"stages", options.stages}, std::pair{"chunks", options.chunks},
                                    std::pair{"microbatches", options.microbatches}}) {
    if (value < 1 || value > kMost)
      return fail(Errc::invalid_argument, "{} must lie in 1..{}, found {}", name, kMost, value);
  }
  const auto passes = 3 * std::int64_t{options.stages} * options.chunks;
  if (passes > kMostPasses / options.microbatches)
    return fail(Errc::invalid_argument, "{} stages of {} chunks with {} microbatches are more than {} passes",
                options.stages, options.chunks, options.microbatches, kMostPasses);
  if (options.kind != ScheduleKind::interleaved) {
    if (options.chunks == 1) return {};
    return fail(Errc::invalid_argument, "a stage has one chunk in {} schedules, found {}; use interleaved",
                name_of(options.kind), options.chunks);
  }
  if (options.microbatches % options.stages != 0)
    return fail(Errc::invalid_argument,
                "an interleaved schedule of {} stages needs a multiple of as many microbatches, found {}",
                options.stages, options.microbatches);
  return {};
}

}  // namespace

std::string_view name_of(PassKind kind) noexcept {
  static constexpr auto kNames =
      enum_names<PassKind>("forward", "backward", "backward_input", "backward_weight");
  return kNames[kind];
}

Pass pass_of(PassKind kind) noexcept {
  return kind == PassKind::forward           ? Pass::forward
         : kind == PassKind::backward_weight ? Pass::weights
                                             : Pass::backward;
}

std::string short_name(const PipelinePass& pass, int chunks) {
  const char letter = pass.kind == PassKind::forward           ? 'F'
                      : pass.kind == PassKind::backward_weight ? 'W'
                                                               : 'B';
  return chunks == 1 ? fmt::format("{}{}", letter, pass.microbatch)
                     : fmt::format("{}{}.{}", letter, pass.microbatch, pass.chunk);
}

std::string_view name_of(ScheduleKind kind) noexcept {
  for (const auto& [each, name] : kKinds) {
    if (each == kind) return name;
  }
  return "";
}

Result<ScheduleKind> schedule_kind_from_name(std::string_view name) {
  for (const auto& [kind, each] : kKinds) {
    if (name == each) return kind;
  }
  return fail(Errc::invalid_argument, "no schedule \"{}\"; use gpipe, 1f1b, interleaved or zero_bubble",
              name.substr(0, 40));
}

int warm_up_passes(const ScheduleOptions& options, int stage) {
  const int to_come = options.stages - stage - 1, all = options.microbatches * options.chunks;
  switch (options.kind) {
    case ScheduleKind::gpipe:
      return all;
    case ScheduleKind::interleaved:
      // With one chunk it is 1F1B.
      if (options.chunks > 1) return std::min(all, to_come * 2 + (options.chunks - 1) * options.stages);
      break;
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::zero_bubble:
      break;
  }
  return std::min(all, to_come);
}

Result<PipelineSchedule> plan_schedule(const ScheduleOptions& options) {
  TRY(check(options));
  PipelineSchedule schedule{options.stages, options.chunks, options.microbatches, {}};
  for (int stage = 0; stage < options.stages; ++stage) {
    switch (options.kind) {
      case ScheduleKind::gpipe:
      case ScheduleKind::one_f_one_b:
      case ScheduleKind::interleaved:
        schedule.passes.push_back(plan_alternating(options, stage));
        break;
      case ScheduleKind::zero_bubble:
        schedule.passes.push_back(plan_zero_bubble(options, stage));
        break;
    }
  }
  return schedule;
}

}  // namespace troupe::core
