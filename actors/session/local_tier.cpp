#include "actors/session/local_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/roles/checkpoint_writer.hpp"
#include "actors/roles/replica_coordinator.hpp"
#include "actors/roles/replica_keeper.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;
using messages::Role;

namespace {

/// Rounds of an exchange in flight at the same time: one is shared while others are read and written.
constexpr std::uint32_t kRounds = 2;

}  // namespace

core::Result<std::unique_ptr<LocalTier>> LocalTier::create(
    RankWorld& world, const DataPlane& data, const RankState& state, std::span<const gpu::BufferView> memory,
    std::uint32_t buckets, core::LocalTierOptions options, std::chrono::nanoseconds hold_deadline) {
  if (options.chunk_bytes == 0 || options.staging_bytes < options.chunk_bytes) {
    return core::fail(Errc::invalid_argument,
                      "{} bytes for staging local copies hold no chunk of {} bytes; give at least one chunk",
                      options.staging_bytes, options.chunk_bytes);
  }
  if (options.keep < 1)
    return core::fail(Errc::invalid_argument, "{} local saves cannot be kept; keep at least one",
                      options.keep);
  std::unique_ptr<LocalTier> tier(new LocalTier(world, state, buckets, std::move(options), hold_deadline));
  TRY(tier->open(data, memory));
  return tier;
}

core::Result<void> LocalTier::open(const DataPlane& data, std::span<const gpu::BufferView> memory) {
  cliques_ = TRY(cliques_of(options_, world_.world_size()));
  auto post = [this](messages::Envelope envelope) { world_.post(std::move(envelope)); };
  auto run_io = [this](std::function<void()> job) { world_.run_local_io(std::move(job)); };
  auto blame = [this](Role asker, std::string what) {
    world_.blame({world_.rank(), asker, 0}, std::move(what));
  };
  const auto log = world_.log(Subsystem::replica);

  CheckpointPlane::Options copies;
  copies.rank = world_.rank();
  copies.epoch = world_.epoch();
  copies.chunk_bytes = options_.chunk_bytes;
  copies.staging =
      staging_buffers(state_.structure, state_.buckets(), copies.chunk_bytes, options_.staging_bytes);
  copies.writer = Role::local_writer;
  copies.sync = options_.sync;
  copies.post = post;
  copies.run_io = run_io;
  copies.blame = blame;
  copies.log = log;
  copies_ = TRY(CheckpointPlane::create(world_.device(), data, state_, memory, *world_.local_storage(),
                                        std::move(copies)));

  ReplicaPlane::Options replicas;
  replicas.rank = world_.rank();
  replicas.world = world_.world_size();
  replicas.epoch = world_.epoch();
  replicas.clique = clique();
  replicas.chunk_bytes = options_.chunk_bytes;
  replicas.credits = kRounds;
  replicas.keep = options_.keep;
  replicas.sync = options_.sync;
  for (const auto& [rank, storage] : world_.local_storages_beside()) replicas.beside.push_back(storage);
  replicas.deadline = options_.deadline;
  replicas.post = post;
  replicas.run_io = run_io;
  replicas.blame = blame;
  replicas.log = log;
  replicas_ = TRY(ReplicaPlane::create(world_.host_device(), state_.structure, *world_.local_storage(),
                                       std::move(replicas)));
  return {};
}

void LocalTier::spawn_roles() {
  const auto rank = world_.rank();
  const messages::Address keeper_address{rank, Role::replica_keeper, 0};
  CheckpointWriterConfig writer;
  writer.rank = rank;
  writer.buckets = buckets_;
  writer.trainer_holds = state_.has_trainer_tensors();
  writer.structure = state_.structure;
  writer.bucket_of = state_.buckets();
  writer.chunk_bytes = copies_->chunk_bytes();
  writer.staging = copies_->staging();
  writer.coordinator = keeper_address;
  writer.hold_deadline = hold_deadline_;
  writer.tells_trainer = false;
  world_.spawn({rank, Role::local_writer, 0}, std::make_unique<CheckpointWriterMachine>(std::move(writer)));
  ReplicaKeeperConfig keeper;
  keeper.rank = rank;
  keeper.clique = clique();
  keeper.pieces = core::pieces_with_bytes(state_.structure);
  keeper.chunk_bytes = options_.chunk_bytes;
  keeper.credits = kRounds;
  keeper.deadline = options_.deadline;
  world_.spawn(keeper_address, std::make_unique<ReplicaKeeperMachine>(std::move(keeper)));
  if (rank.value != 0) return;
  // A keeper that gives up says so before the coordinator does, which knows only that it is waiting.
  world_.spawn({rank, Role::replica_coordinator, 0},
               std::make_unique<ReplicaCoordinatorMachine>(ReplicaCoordinatorConfig{
                   world_.world_size(), cliques_, options_.deadline + options_.deadline / 2}));
}

core::Result<std::vector<core::Clique>> LocalTier::cliques_of(const core::LocalTierOptions& options,
                                                              core::WorldSize world) {
  return options.cliques.empty() ? core::make_cliques(world, options.jump, options.factor)
                                 : core::sorted_cliques(world, options.cliques);
}

std::string LocalTier::configuration(const std::vector<core::Clique>& cliques) {
  std::string text = "cliques";
  for (const auto& clique : cliques) {
    char before = ' ';
    for (auto member : clique) text += fmt::format("{}{}", std::exchange(before, ','), member.value);
  }
  return text;
}

}  // namespace troupe::actors
