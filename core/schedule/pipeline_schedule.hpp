#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/terms.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// What a pipeline stage does with a microbatch. A schedule has `backward`, or the two passes that split it.
enum class PassKind : std::uint8_t {
  forward,
  backward,         ///< for inputs and weights
  backward_input,   ///< what the previous stage waits for
  backward_weight,  ///< what only the optimizer waits for
};
std::string_view name_of(PassKind kind) noexcept;
/// A backward for inputs is the `backward` of a list in which `weights` follows.
Pass pass_of(PassKind kind) noexcept;

struct PipelinePass {
  PassKind kind = PassKind::forward;
  int microbatch = 0;
  int chunk = 0;  ///< of the stage's layers

  friend auto operator<=>(const PipelinePass&, const PipelinePass&) = default;
};

/// F, B or W with the microbatch and, if there are several, the chunk: "B3", "B3.1".
std::string short_name(const PipelinePass& pass, int chunks);

enum class ScheduleKind : std::uint8_t {
  gpipe,        ///< all forwards, then all backwards
  one_f_one_b,  ///< 1F1B: no more microbatches in flight than stages to come
  interleaved,  ///< 1F1B over several chunks per stage, as Megatron-Core orders them
  zero_bubble,  ///< ZB-H1 (Qi et al. 2023): 1F1B whose weights' backwards fill the gaps at the end
};
std::string_view name_of(ScheduleKind kind) noexcept;
Result<ScheduleKind> schedule_kind_from_name(std::string_view name);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;
  int chunks = 1;  ///< per stage; chunk c of stage s has the layers of place c * stages + s
  int microbatches = 1;
};

/// What each stage does, in order. Plain data: everything that runs, checks or draws a pipeline reads it.
struct PipelineSchedule {
  int stages = 0;
  int chunks = 0;
  int microbatches = 0;
  std::vector<std::vector<PipelinePass>> passes;  ///< per stage

  friend bool operator==(const PipelineSchedule&, const PipelineSchedule&) = default;
};

/// Errc::invalid_argument for sizes that do not fit: only interleaved schedules have several chunks, and
/// their number of microbatches is a multiple of the stages. All microbatches go backward in order, so a
/// chunk adds its gradients in the order of microbatches whatever the schedule.
Result<PipelineSchedule> plan_schedule(const ScheduleOptions& options);

/// Number of a stage's forwards before its first backward: for 1F1B and ZB-H1 stages - stage, of which the
/// last is followed by its own backward, and is not counted; for interleaved schedules (stages - stage - 1) *
/// 2 + (chunks - 1) * stages, as in Megatron-Core's get_pp_rank_microbatches(). At most all there are.
int warm_up_passes(const ScheduleOptions& options, int stage);

}  // namespace troupe::core
