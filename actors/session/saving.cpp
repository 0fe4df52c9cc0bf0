#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "actors/checkpoint/reader.hpp"
#include "actors/checkpoint_writer/machine.hpp"
#include "actors/session/rendezvous.hpp"
#include "actors/session/session.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using core::Errc;
using core::Value;
using messages::Role;

namespace {

/// What travels in one message beside other things.
constexpr std::size_t kMaxValueBytes = std::size_t{256} << 10;

const char* name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd:
      return "sgd";
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::adamw:
      return "adamw";
  }
  return "adamw";
}

core::Result<void> check_size(const char* what, const std::string& text) {
  if (text.size() <= kMaxValueBytes) return {};
  return core::fail(
      Errc::invalid_argument,
      "{} of a save take {} bytes as JSON, at most {} are allowed; save what is large as a tensor", what,
      text.size(), kMaxValueBytes);
}

}  // namespace

core::Result<void> Session::open_checkpoints() {
  Storage* storage = world_.storage();
  if (storage == nullptr) return {};
  const auto& wanted = options_.checkpoint;
  if (wanted.chunk_bytes == 0 || wanted.staging_bytes < wanted.chunk_bytes) {
    return core::fail(Errc::invalid_argument,
                      "{} bytes for staging hold no chunk of {} bytes; give at least one chunk",
                      wanted.staging_bytes, wanted.chunk_bytes);
  }
  CheckpointPlane::Options plane;
  plane.rank = world_.rank();
  plane.epoch = world_.epoch();
  plane.chunk_bytes = wanted.chunk_bytes - staging_slack(wanted.chunk_bytes);
  plane.staging =
      staging_buffers(state_.structure, state_.buckets(), plane.chunk_bytes, wanted.staging_bytes);
  plane.retention = wanted.retention;
  plane.post = [this](messages::Envelope envelope) { world_.post(std::move(envelope)); };
  plane.run_io = [this](std::function<void()> job) { world_.run_io(std::move(job)); };
  plane.log = [this](const std::string& line) { world_.log(line); };
  checkpoint_plane_ = TRY(
      CheckpointPlane::create(world_.device(), *data_plane_, state_, memory_, *storage, std::move(plane)));
  return {};
}

void Session::spawn_checkpoint_roles() {
  CheckpointWriterConfig writer;
  writer.rank = world_.rank();
  writer.buckets = static_cast<std::uint32_t>(job_.buckets.size());
  writer.trainer_holds = state_.has_trainer_tensors();
  writer.structure = state_.structure;
  writer.bucket_of = state_.buckets();
  writer.chunk_bytes = checkpoint_plane_->chunk_bytes();
  writer.staging = checkpoint_plane_->staging();
  // Before the collectives of other ranks, which wait for this one, count as hung.
  writer.hold_deadline = options_.step_deadline * 2 / 3;
  world_.spawn({world_.rank(), Role::checkpoint_writer, 0},
               std::make_unique<CheckpointWriterMachine>(std::move(writer)));
  if (world_.rank().value != 0) return;
  CheckpointCoordinatorConfig coordinator;
  coordinator.world = world_.world();
  coordinator.deadline = options_.checkpoint.deadline;
  coordinator.when_busy = options_.checkpoint.when_busy;
  coordinator.save_seed =
      core::hash64(fmt::format("{} {} {}", world_.job(), world_.epoch().value, world_.unique()));
  world_.spawn({world_.rank(), Role::checkpoint_coordinator, 0},
               std::make_unique<CheckpointCoordinatorMachine>(coordinator));
}

void Session::adopt() {
  if (adopted_) return;
  data_plane_->adopt_parameters();
  adopted_ = true;
}

Value Session::topology() const {
  const auto& training = job_.options;
  return Value::Map{{"world", static_cast<std::int64_t>(job_.world.value)},
                    {"strategy", std::string(core::name_of(training.strategy))},
                    {"numerics", training.numerics == core::Numerics::ordered ? "ordered" : "fast"},
                    {"lanes", static_cast<std::int64_t>(training.lanes)},
                    {"optimizer", name_of(training.optimizer.kind)},
                    {"optimizer_instances", static_cast<std::int64_t>(training.optimizer_instances)}};
}

core::Result<messages::SaveBegan> Session::save_message(const Value& common) const {
  messages::SaveBegan begun;
  begun.step = core::Step{step_.value - 1};
  begun.topology = TRY(core::value_text(topology()));
  begun.common = TRY(core::value_text(
      Value::Map{{"step", step_.value}, {"optimizer_steps", optimizer_steps_}, {"trainer", common}}));
  TRY(check_size("the common values", begun.common));
  return begun;
}

core::Result<std::uint64_t> Session::save(const Value& common,
                                          const std::vector<core::ManifestObject>& objects) {
  if (auto failure = port_.failure()) return tl::unexpected(*failure);
  if (!checkpoint_plane_) {
    return core::fail(
        Errc::unavailable,
        "this job has no directory for checkpoints; give ProcessWorldOptions::checkpoint_directory");
  }
  adopt();
  auto begun = TRY(save_message(common));
  begun.objects = TRY(core::objects_text(objects));
  TRY(check_size("the objects", begun.objects));
  begun.sequence = ++saves_begun_;
  // The shards first: what they hold is released by the writer.
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket)
    post(Role::parameter_shard, bucket, begun);
  post(Role::checkpoint_writer, 0, begun);
  hold_tensors(Role::checkpoint_writer, begun.sequence);
  return begun.sequence;
}

std::vector<SaveResult> Session::take_saves() {
  std::vector<SaveResult> results;
  for (auto& over : port_.take_saves()) {
    SaveResult result{
        over.sequence, core::Step{over.step.value + 1}, over.directory, over.bytes, over.warning, {}};
    if (over.failure.failed) result.committed = tl::unexpected(messages::error_of(over.failure));
    results.push_back(std::move(result));
  }
  return results;
}

core::Result<void> Session::wait_saves() {
  // One after the other: each has a deadline a phase, and a fourth is for the word about its end to come
  // here.
  for (std::uint64_t save = 1; save <= saves_begun_; ++save)
    TRY(port_.wait_saves(save, 4 * options_.checkpoint.deadline));
  return {};
}

}  // namespace troupe::actors
