#include "actors/session/local_tier.hpp"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "actors/roles/checkpoint_writer.hpp"
#include "actors/roles/replica_coordinator.hpp"
#include "actors/roles/replica_keeper.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

using core::Errc;
using messages::Role;

namespace {

/// Rounds of an exchange in flight at the same time: one is shared while others are read and written.
constexpr std::uint32_t kRounds = 2;

}  // namespace

core::Result<std::unique_ptr<LocalTier>> LocalTier::create(const SessionContext& context) {
  const auto& options = context.options.local;
  if (options.chunk_bytes == 0 || options.staging_bytes < options.chunk_bytes) {
    return core::fail(Errc::invalid_argument,
                      "{} bytes for staging local copies hold no chunk of {} bytes; give at least one chunk",
                      options.staging_bytes, options.chunk_bytes);
  }
  if (options.keep < 1)
    return core::fail(Errc::invalid_argument, "{} local saves cannot be kept; keep at least one",
                      options.keep);
  std::unique_ptr<LocalTier> tier(new LocalTier(context));
  TRY(tier->open());
  return tier;
}

core::Result<void> LocalTier::open() {
  const auto& options = in_.options.local;
  auto& world = in_.world;
  cliques_ = TRY(cliques_of(options, world.world_size()));
  auto post = [&world](messages::Envelope envelope) { world.post(std::move(envelope)); };
  auto run_io = [&world](std::function<void()> job) { world.run_local_io(std::move(job)); };
  auto blame = [&world](Role asker, std::string what) {
    world.blame({world.rank(), asker, 0}, std::move(what));
  };
  const auto log = world.log(Subsystem::replica);

  CheckpointPlane::Options copies;
  copies.rank = world.rank();
  copies.epoch = world.epoch();
  copies.chunk_bytes = options.chunk_bytes;
  copies.staging =
      staging_buffers(in_.state.structure, in_.state.buckets(), copies.chunk_bytes, options.staging_bytes);
  copies.writer = Role::local_writer;
  copies.sync = options.sync;
  copies.post = post;
  copies.run_io = run_io;
  copies.blame = blame;
  copies.log = log;
  copies_ = TRY(CheckpointPlane::create(world.device(), in_.data, in_.state, in_.memory,
                                        *world.local_storage(), std::move(copies)));

  ReplicaPlane::Options replicas;
  replicas.rank = world.rank();
  replicas.world = world.world_size();
  replicas.epoch = world.epoch();
  replicas.clique = clique();
  replicas.chunk_bytes = options.chunk_bytes;
  replicas.credits = kRounds;
  replicas.keep = options.keep;
  replicas.sync = options.sync;
  for (const auto& [rank, storage] : world.local_storages_beside()) replicas.beside.push_back(storage);
  replicas.deadline = options.deadline;
  replicas.post = post;
  replicas.run_io = run_io;
  replicas.blame = blame;
  replicas.log = log;
  replicas_ = TRY(ReplicaPlane::create(world.host_device(), in_.state.structure, *world.local_storage(),
                                       std::move(replicas)));
  return {};
}

void LocalTier::spawn_roles() {
  const auto rank = in_.world.rank();
  const messages::Address keeper_address{rank, Role::replica_keeper, 0};
  CheckpointWriterConfig writer;
  writer.rank = rank;
  writer.buckets = in_.bucket_count();
  writer.trainer_holds = in_.state.has_trainer_tensors();
  writer.structure = in_.state.structure;
  writer.bucket_of = in_.state.buckets();
  writer.chunk_bytes = copies_->chunk_bytes();
  writer.staging = copies_->staging();
  writer.coordinator = keeper_address;
  writer.hold_deadline = in_.hold_deadline();
  writer.tells_trainer = false;
  in_.world.spawn({rank, Role::local_writer, 0},
                  std::make_unique<CheckpointWriterMachine>(std::move(writer)));
  ReplicaKeeperConfig keeper;
  keeper.rank = rank;
  keeper.clique = clique();
  keeper.pieces = core::pieces_with_bytes(in_.state.structure);
  keeper.chunk_bytes = in_.options.local.chunk_bytes;
  keeper.credits = kRounds;
  keeper.deadline = in_.options.local.deadline;
  in_.world.spawn(keeper_address, std::make_unique<ReplicaKeeperMachine>(std::move(keeper)));
  if (rank.value != 0) return;
  // A keeper that gives up says so before the coordinator does, which knows only that it is waiting.
  in_.world.spawn(
      {rank, Role::replica_coordinator, 0},
      std::make_unique<ReplicaCoordinatorMachine>(ReplicaCoordinatorConfig{
          in_.world.world_size(), cliques_, in_.options.local.deadline + in_.options.local.deadline / 2}));
}

core::Result<void> LocalTier::connect(const GroupMaker& groups) {
  if (clique().size() > 1)
    replicas_->set_group(TRY(groups.of_hosts(fmt::format("replicas-{}", clique().front().value), clique())));
  if (in_.is_first_rank()) TRY(in_.rendezvous.set("replicas/seed", std::to_string(in_.world.unique())));
  const auto text = TRY(in_.rendezvous.get("replicas/seed", in_.options.join_deadline));
  messages::ReplicaSeed message;
  message.seed = TRY(core::parse_number<std::uint64_t>(text, {0, std::numeric_limits<std::uint64_t>::max()}));
  in_.post(Role::replica_keeper, 0, message);
  return {};
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
