#include "actors/session/saves.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  return values;
}

core::Result<messages::SaveBegan> Saves::message(const Progress& progress, const Value& common) const {
  messages::SaveBegan begun;
  begun.step = core::last_step(progress.over);
  begun.topology = TRY(core::value_text(topology_of(in_.plan)));
  begun.common = TRY(core::value_text(values_of(progress, common)));
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
  in_.data.mark_tensors();
  in_.post(writer, 0, messages::BucketHeld{begun.sequence, {in_.bucket_count()}});
}

core::Result<std::uint64_t> Saves::begin(const Progress& progress, const Value& common,
                                         const std::vector<core::ManifestObject>& objects) {
  auto begun = TRY(message(progress, common));
  begun.objects = TRY(core::objects_text(objects));
  TRY(check_size("the objects", begun.objects));
  begun.sequence = ++begun_;
  last_ = progress.over;
  announce(Role::checkpoint_writer, begun);
  return begun.sequence;
}

core::Result<std::uint64_t> Saves::begin_local(const Progress& progress, const Value& common) {
  auto begun = TRY(message(progress, common));
  begun.objects = "[]";
  begun.sequence = ++begun_locally_;
  announce(Role::local_writer, begun);
  return begun.sequence;
}

std::vector<SaveResult> Saves::take() {
  look();
  return std::exchange(seen_, {});
}

core::Result<void> Saves::let_others_join(core::StepCount over) {
  if (last_ != over) return {};
  TRY(wait());
  look();
  if (committed_ != over) return {};
  return core::fail(
      Errc::peer_lost,
      "other ranks join the job, which is saved after {} steps; ProcessWorld::form_anew() says how "
      "it goes on",
      over.value);
}

void Saves::look() {
  for (auto& over : in_.inbox.take_saves()) {
    SaveResult result{
        over.sequence, core::steps_through(over.step), over.directory, over.bytes, over.warning, {}};
    if (over.failure.failed) result.committed = tl::unexpected(messages::error_of(over.failure));
    if (result.committed) committed_ = result.step;
    seen_.push_back(std::move(result));
  }
}

std::vector<SaveResult> Saves::take_local() {
  std::vector<SaveResult> results;
  for (auto& over : in_.inbox.take_local_saves()) {
    SaveResult result{over.sequence, core::steps_through(over.step), {}, over.bytes, {}, {}};
    if (over.failure.failed) result.committed = tl::unexpected(messages::error_of(over.failure));
    results.push_back(std::move(result));
  }
  return results;
}

core::Result<void> Saves::wait() {
  // One after the other: each has one deadline per phase; the fourth is for the news of its end to arrive
  // here.
  for (; ended_ < begun_; ++ended_)
    TRY(in_.inbox.wait_saves(ended_ + 1, 4 * in_.options.checkpoint.deadline));
  return {};
}

core::Result<void> Saves::wait_local() {
  // One after the other: each has two phases of one and a half deadlines, and time for the news to arrive
  // here.
  for (; ended_locally_ < begun_locally_; ++ended_locally_)
    TRY(in_.inbox.wait_local_saves(ended_locally_ + 1, 4 * in_.options.local.deadline));
  return {};
}

core::Result<void> Saves::wait_tensors() {
  if (in_.options.tensors.empty()) return {};
  // A save that is held up for longer than a phase may last ends, and then nothing is held.
  if (begun_ != 0)
    TRY(in_.inbox.wait_staged(Role::checkpoint_writer, begun_, 4 * in_.options.checkpoint.deadline));
  if (begun_locally_ != 0)
    TRY(in_.inbox.wait_staged(Role::local_writer, begun_locally_, 4 * in_.options.local.deadline));
  return {};
}

}  // namespace troupe::actors
