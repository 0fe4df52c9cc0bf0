#include "actors/session/saves.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/session/last_step.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/step_count.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

namespace {

/// What fits into one message together with other things.
constexpr std::size_t kMaxValueBytes = std::size_t{256} << 10;

/// The optimizers of the groups, each once, in order.
std::string optimizers_of(const TrainingPlan& plan) {
  std::vector<std::string_view> names;
  for (const auto& group : plan.groups) {
    const auto name = core::name_of(group.optimizer.kind);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

core::Result<void> check_size(std::string_view what, const std::string& text) {
  if (text.size() <= kMaxValueBytes) return {};
  return core::fail(
      Errc::invalid_argument,
      "{} of a save take {} bytes as JSON, at most {} are allowed; save what is large as a tensor", what,
      text.size(), kMaxValueBytes);
}

Value topology_of(const TrainingPlan& plan) {
  const auto& training = plan.options;
  return Value::Map{{"world", static_cast<std::int64_t>(plan.world.value)},
                    {"strategy", std::string(core::name_of(training.strategy))},
                    {"numerics", training.numerics == core::Numerics::ordered ? "ordered" : "fast"},
                    {"lanes", static_cast<std::int64_t>(training.lanes)},
                    {"optimizer", optimizers_of(plan)},
                    {"optimizer_instances", static_cast<std::int64_t>(training.optimizer_instances)}};
}

}  // namespace

Value::Map Saves::values_of(const Progress& progress, const Value& common) {
  Value::Map values{{"step", progress.over.value},
                    {"optimizer_steps", progress.optimizer_steps.value},
                    {"trainer", common}};
  if (!progress.steps_missed.empty())
    values.set(core::kStepsMissedKey, core::value_of(progress.steps_missed));
  if (const auto& scaling = progress.loss_scaling) {
    values.set("loss_scaling", Value::Map{{"scale", scaling->scale},
                                          {"growth_tracker", scaling->finite_steps},
                                          {"hysteresis_tracker", scaling->overflows_left}});
  }
  if (progress.last) values.set(kLastStepKey, value_of(*progress.last));
  return values;
}

core::Result<messages::SaveBegan> Saves::message(const Progress& progress, const Value& common) const {
  messages::SaveBegan begun;
  begun.step = core::last_step(progress.over);
  begun.topology = TRY(core::value_text(topology_of(in_.plan)));
  auto saved = progress;
  if (saved.last) saved.last->wishes = 0;  // whoever restores has not wished anything
  begun.common = TRY(core::value_text(values_of(saved, common)));
  TRY(check_size("the common values", begun.common));
  return begun;
}

/// The shards are told first: the writer, in whose name they are asked, releases what they hold.
void Saves::announce(Role writer, const messages::SaveBegan& begun) {
  const messages::Address asking{in_.rank(), writer, 0};
  for (const auto bucket : in_.buckets())
    in_.world.post({asking, {in_.rank(), Role::parameter_shard, bucket.value}, in_.world.epoch(), begun});
  in_.post(writer, 0, begun);
  if (in_.options.tensors.empty()) return;
  // Nothing changes the trainer's tensors between a save and begin_step().
  in_.data.marks().tensors_written();
  in_.post(writer, 0, messages::BucketHeld{begun.sequence, {in_.bucket_count()}});
}

core::Result<std::uint64_t> Saves::begin(const Progress& progress, const Value& common,
                                         const std::vector<core::ManifestObject>& objects) {
  auto begun = TRY(message(progress, common));
  begun.objects = TRY(core::objects_text(objects));
  TRY(check_size("the objects", begun.objects));
  begun.sequence = ++shared_.begun;
  shared_.last = progress.over;
  announce(Role::checkpoint_writer, begun);
  return begun.sequence;
}

core::Result<std::uint64_t> Saves::begin_local(const Progress& progress, const Value& common) {
  auto begun = TRY(message(progress, common));
  begun.objects = "[]";
  begun.sequence = ++local_.begun;
  local_.last = progress.over;
  announce(Role::local_writer, begun);
  return begun.sequence;
}

std::vector<SaveResult> Saves::take() {
  look();
  return std::exchange(shared_.seen, {});
}

core::Result<void> Saves::let_others_join(core::StepCount over) {
  if (shared_.last != over && local_.last != over) return {};
  if (shared_.last == over) TRY(wait());
  if (local_.last == over) TRY(wait_local());
  look();
  if (shared_.committed != over && local_.committed != over) return {};
  return core::fail(
      Errc::peer_lost,
      "other ranks join the job, which is saved after {} steps; ProcessWorld::form_anew() says how "
      "it goes on",
      over.value);
}

void Saves::Tier::see(SaveResult result, const messages::Failure& failure) {
  if (failure.failed) {
    result.committed = tl::unexpected(messages::error_of(failure));
  } else {
    committed = result.step;
  }
  seen.push_back(std::move(result));
}

void Saves::look() {
  for (auto& over : in_.inbox.take_saves()) {
    const auto step = core::steps_through(over.step);
    shared_.see({over.sequence, step, over.directory, over.bytes, over.warning, {}}, over.failure);
  }
  for (auto& over : in_.inbox.take_local_saves())
    local_.see({over.sequence, core::steps_through(over.step), {}, over.bytes, {}, {}}, over.failure);
}

std::vector<SaveResult> Saves::take_local() {
  look();
  return std::exchange(local_.seen, {});
}

core::Result<void> Saves::wait() {
  // One after the other: each has one deadline per phase; the fourth is for the news of its end to arrive
  // here.
  for (; shared_.ended < shared_.begun; ++shared_.ended)
    TRY(in_.inbox.wait_saves(shared_.ended + 1, 4 * in_.options.checkpoint.deadline));
  return {};
}

core::Result<void> Saves::wait_local() {
  // One after the other: each has two phases of one and a half deadlines, and time for the news to arrive
  // here.
  for (; local_.ended < local_.begun; ++local_.ended)
    TRY(in_.inbox.wait_local_saves(local_.ended + 1, 4 * in_.options.local.deadline));
  return {};
}

core::Result<void> Saves::wait_tensors() {
  if (in_.options.tensors.empty()) return {};
  // A save that is held up for longer than a phase may last ends, and then nothing is held.
  if (shared_.begun != 0)
    TRY(in_.inbox.wait_staged(Role::checkpoint_writer, shared_.begun, 4 * in_.options.checkpoint.deadline));
  if (local_.begun != 0)
    TRY(in_.inbox.wait_staged(Role::local_writer, local_.begun, 4 * in_.options.local.deadline));
  return {};
}

}  // namespace troupe::actors
