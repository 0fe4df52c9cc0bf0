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

/// Targets and where they are in memory.
struct Wanted {
  std::vector<core::LoadTarget> targets;
  std::vector<std::span<std::byte>> memory;

  void add(std::string key, core::DType dtype, const core::Shape& shape, core::Box box,
           gpu::BufferView view) {
    targets.push_back({std::move(key), dtype, shape, std::move(box), false});
    memory.emplace_back(view.data, view.bytes);
  }
};

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
  state_ = state_of(job_, world_.rank());
  std::uint64_t bytes = 0;
  for (const auto& piece : state_.structure.pieces) bytes += state_.structure.bytes_of(piece);
  CheckpointPlane::Options plane;
  plane.rank = world_.rank();
  plane.epoch = world_.epoch();
  const auto chunk_bytes = wanted.chunk_bytes - staging_slack(wanted.chunk_bytes);
  // No more than everything at once could fill, a chunk of each bucket being short.
  const auto most = bytes / chunk_bytes + 1 + job_.buckets.size();
  plane.chunk_bytes = std::min(chunk_bytes, std::max<std::uint64_t>(bytes, 1));
  plane.credits = static_cast<std::uint32_t>(std::min(most, wanted.staging_bytes / wanted.chunk_bytes));
  plane.retention = wanted.retention;
  plane.post = [this](messages::Envelope envelope) { world_.post(std::move(envelope)); };
  plane.run_io = [this](std::function<void()> job) { world_.run_io(std::move(job)); };
  plane.log = [this](const std::string& line) { world_.log(line); };
  checkpoint_plane_ =
      TRY(CheckpointPlane::create(world_.device(), *data_plane_, state_, *storage, std::move(plane)));
  return {};
}

void Session::spawn_checkpoint_roles() {
  CheckpointWriterConfig writer;
  writer.rank = world_.rank();
  writer.buckets = static_cast<std::uint32_t>(job_.buckets.size());
  writer.structure = state_.structure;
  writer.bucket_of = state_.buckets();
  writer.chunk_bytes = checkpoint_plane_->chunk_bytes();
  writer.credits = checkpoint_plane_->credits();
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

core::Result<std::uint64_t> Session::save(const Value& common,
                                          const std::vector<core::ManifestObject>& objects) {
  if (auto failure = port_.failure()) return tl::unexpected(*failure);
  if (!checkpoint_plane_) {
    return core::fail(
        Errc::unavailable,
        "this job has no directory for checkpoints; give ProcessWorldOptions::checkpoint_directory");
  }
  adopt();
  messages::SaveBegan begun;
  begun.step = core::Step{step_.value - 1};
  begun.topology = TRY(core::value_text(topology()));
  begun.common = TRY(core::value_text(
      Value::Map{{"step", step_.value}, {"optimizer_steps", optimizer_steps_}, {"trainer", common}}));
  begun.objects = TRY(core::objects_text(objects));
  TRY(check_size("the common values", begun.common));
  TRY(check_size("the objects", begun.objects));
  begun.sequence = ++saves_begun_;
  // The shards first: what they hold is released by the writer.
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket)
    post(Role::parameter_shard, bucket, begun);
  post(Role::checkpoint_writer, 0, begun);
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

core::Result<std::optional<Restored>> Session::restore(const RestoreOptions& options) {
  Storage* storage = options.from != nullptr ? options.from : world_.storage();
  if (storage == nullptr) return core::fail(Errc::unavailable, "this job has no directory to restore from");
  if (step_.value != 0 || saves_begun_ != 0)
    return core::fail(Errc::invalid_argument,
                      "a session is restored before its first step, not after step {}", step_.value);
  const auto prefix = fmt::format("restore/{}/", restores_++);
  std::vector<std::string> passed_over;
  std::vector<CheckpointName> candidates;
  if (world_.rank().value == 0 && options.name.empty()) candidates = TRY(list_checkpoints(*storage));
  if (!options.name.empty()) candidates.push_back({options.name, {}});
  for (std::size_t attempt = 0;; ++attempt) {
    const auto key = fmt::format("{}{}/", prefix, attempt);
    if (world_.rank().value == 0) {
      const bool more = attempt < candidates.size();
      TRY(rendezvous_->set(key + "choice", more ? "=" + candidates[attempt].name : ""));
    }
    const auto choice = TRY(rendezvous_->get(key + "choice", options_.checkpoint.deadline));
    if (choice.empty()) break;
    const auto name = choice.substr(1);
    auto loaded = load(*storage, name, options.optimizer);
    const auto complaint = TRY(agree_on_load(key, loaded ? "" : loaded.error().message));
    if (complaint.empty()) {
      loaded->passed_over = std::move(passed_over);
      return std::optional(std::move(*loaded));
    }
    passed_over.push_back(fmt::format("{}: {}", name, complaint));
  }
  if (passed_over.empty()) return std::optional<Restored>{};
  return tl::unexpected(abandon(
      {Errc::corrupt, fmt::format("no checkpoint could be loaded; {}", fmt::join(passed_over, "; "))}));
}

/// Empty when every rank has loaded, else what the first rank that could not says; the same on all.
core::Result<std::string> Session::agree_on_load(const std::string& attempt, const std::string& complaint) {
  const auto deadline = options_.checkpoint.deadline;
  TRY(rendezvous_->set(fmt::format("{}rank/{}", attempt, world_.rank().value), complaint));
  if (world_.rank().value == 0) {
    std::string first;
    for (std::int32_t rank = 0; rank < world_.world().value; ++rank) {
      const auto said = TRY(rendezvous_->get(fmt::format("{}rank/{}", attempt, rank), deadline));
      if (first.empty() && !said.empty()) first = fmt::format("rank {}: {}", rank, said);
    }
    TRY(rendezvous_->set(attempt + "verdict", first));
  }
  return rendezvous_->get(attempt + "verdict", deadline);
}

core::Result<Restored> Session::load(Storage& storage, const std::string& name, bool optimizer) {
  const auto manifest = TRY(check_quickly(storage, name));
  const auto* counters = manifest.common.as_map();
  const auto* trained = counters != nullptr ? counters->find("optimizer_steps") : nullptr;
  if (trained == nullptr || !trained->as_int()) {
    return core::fail(Errc::mismatch, "{} has no 'optimizer_steps' in its common values: no session saved it",
                      name);
  }
  Wanted wanted;
  for (std::uint32_t p = 0; p < job_.specs.size(); ++p) {
    const auto& spec = job_.specs[p];
    wanted.add(spec.name, spec.dtype, spec.shape, core::Box::whole(spec.shape), data_plane_->parameter(p));
  }
  const auto state = state_of(job_, world_.rank());
  for (std::size_t i = 0; i < state.pieces.size(); ++i) {
    const auto& piece = state.pieces[i];
    const bool is_moment = piece.kind == StateKind::first_moment || piece.kind == StateKind::second_moment;
    if (piece.kind == StateKind::parameter || (is_moment && !optimizer)) continue;
    const auto& box = state.structure.pieces[i].box;
    const auto& tensor = state.structure.tensors[state.structure.pieces[i].tensor];
    auto key = tensor.key;
    // A job without narrow parameters keeps no copy of its own.
    if (piece.kind == StateKind::master && manifest.find(key) == nullptr) {
      key = key.substr(state_key(StateKind::master, job_.options.optimizer.kind, "").size());
    }
    const auto view = data_plane_->state(piece.kind, piece.bucket)
                          .subview(static_cast<std::size_t>(piece.first) * sizeof(float),
                                   static_cast<std::size_t>(box.elements()) * sizeof(float));
    wanted.add(std::move(key), tensor.dtype, tensor.shape, box, view);
  }
  TRY(read_tensors(storage, name, manifest, wanted.targets, wanted.memory));
  adopted_ = true;
  step_ = manifest.step;
  optimizer_steps_ = optimizer ? *trained->as_int() : 0;
  data_plane_->restore_optimizer_steps(optimizer_steps_);
  for (std::uint32_t bucket = 0; bucket < job_.buckets.size(); ++bucket) {
    post(Role::parameter_shard, bucket, messages::StateRestored{core::Step{step_.value - 1}});
  }
  const auto* common = counters->find("trainer");
  return Restored{name, step_, common != nullptr ? *common : Value{}, manifest.topology, {}};
}

}  // namespace troupe::actors
