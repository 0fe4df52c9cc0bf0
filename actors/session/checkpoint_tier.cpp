#include "actors/session/checkpoint_tier.hpp"

#include <utility>

#include "actors/planes/checkpoint/claim.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "actors/roles/checkpoint_coordinator.hpp"
#include "actors/roles/checkpoint_writer.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using messages::Role;

namespace {

/// Where there was an epoch before this one, some of its ranks may not know yet that it has ended.
core::Result<void> claim_checkpoints(const SessionContext& in) {
  if (!in.is_first_rank() || in.world.epoch().value <= 1) return {};
  const auto claimed = claim_directory(*in.world.storage(), {in.world.job(), in.world.epoch()});
  if (claimed || claimed.error().code == core::Errc::stale_epoch) return claimed;
  in.world.log(Subsystem::checkpoint)
      .warning("ranks of earlier epochs are not kept from saving here: {}", claimed.error().message);
  return {};
}

}  // namespace

core::Result<std::unique_ptr<CheckpointTier>> CheckpointTier::create(const SessionContext& in) {
  TRY(claim_checkpoints(in));
  const auto& wanted = in.options.checkpoint;
  if (wanted.chunk_bytes == 0 || wanted.staging_bytes < wanted.chunk_bytes) {
    return core::fail(core::Errc::invalid_argument,
                      "{} bytes for staging hold no chunk of {} bytes; give at least one chunk",
                      wanted.staging_bytes, wanted.chunk_bytes);
  }
  CheckpointPlane::Options options;
  options.rank = in.rank();
  options.epoch = in.world.epoch();
  options.job = in.world.job();
  options.chunk_bytes = wanted.chunk_bytes - staging_slack(wanted.chunk_bytes);
  options.staging =
      staging_buffers(in.state.structure, in.state.buckets(), options.chunk_bytes, wanted.staging_bytes);
  options.retention = wanted.retention;
  options.post = [&world = in.world](messages::Envelope envelope) { world.post(std::move(envelope)); };
  options.run_io = [&world = in.world](std::function<void()> job) { world.run_io(std::move(job)); };
  options.blame = [&world = in.world](Role asker, std::string what) {
    world.blame({world.rank(), asker, 0}, std::move(what));
  };
  options.log = in.world.log(Subsystem::checkpoint);
  auto plane = TRY(CheckpointPlane::create(in.world.device(), in.data, in.state, in.memory,
                                           *in.world.storage(), std::move(options)));
  return std::unique_ptr<CheckpointTier>(new CheckpointTier(in, std::move(plane)));
}

void CheckpointTier::spawn_roles() {
  CheckpointWriterConfig writer;
  writer.rank = in_.rank();
  writer.buckets = in_.bucket_count();
  writer.trainer_holds = in_.state.has_trainer_tensors();
  writer.structure = in_.state.structure;
  writer.bucket_of = in_.state.buckets();
  writer.chunk_bytes = plane_->chunk_bytes();
  writer.staging = plane_->staging();
  writer.hold_deadline = in_.hold_deadline();
  in_.world.spawn({in_.rank(), Role::checkpoint_writer, 0},
                  std::make_unique<CheckpointWriterMachine>(std::move(writer)));
  if (!in_.is_first_rank()) return;
  CheckpointCoordinatorConfig coordinator;
  coordinator.world = in_.world.world_size();
  coordinator.deadline = in_.options.checkpoint.deadline;
  coordinator.when_busy = in_.options.checkpoint.when_busy;
  coordinator.save_seed = in_.world.unique();
  in_.world.spawn({in_.rank(), Role::checkpoint_coordinator, 0},
                  std::make_unique<CheckpointCoordinatorMachine>(coordinator));
}

}  // namespace troupe::actors
