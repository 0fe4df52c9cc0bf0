// How a simulated rank saves, and finds what was saved.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <span>
#include <utility>

#include "actors/chaos/rank.hpp"
#include "actors/planes/checkpoint/claim.hpp"
#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "core/disregard.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

namespace {

constexpr const char* kTensor = "state";

std::string file_of(int rank) {
  return fmt::format("rank_{}", rank);
}

core::ManifestShard shard_of(std::size_t element, std::uint32_t file, std::uint64_t begin,
                             std::uint64_t value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  const auto at = static_cast<std::int64_t>(element);
  return {core::Box{{at}, {1}}, file, begin, begin + sizeof value, core::hash64(bytes)};
}

}  // namespace

std::chrono::nanoseconds ChaosRank::disk_time() {
  if (world_.disk.is_slow) return std::chrono::seconds(1) + world_.up_to(std::chrono::seconds(5));
  return world_.up_to(std::chrono::milliseconds(2));
}

/// All ranks call it between two steps. It copies the state, and training goes on.
void ChaosRank::save() {
  // Rank 0 may have ended this save before this rank got here.
  if (saves_over_.contains(over_)) return;
  snapshots_[over_] = numbers_;
  set_saving(true);
  if (rank_ == 0) {
    if (save_) {
      room_->tell_others(0, [over = over_](ChaosRank& to) { to.save_is_over(over); });
      return save_is_over(over_);
    }
    save_ =
        Save{over_, fmt::format("{}.tmp-{:016x}", core::checkpoint_name({over_}), world_.next_save++), {}};
    later(disk_time(), [this, over = over_, directory = save_->directory] {
      if (!save_ || save_->over != over) return;
      if (!world_.disk.make_directory(directory)) return finish_save(over);
      room_->tell_others(0, [=](ChaosRank& to) { to.asked_to_write(over, directory); });
      asked_to_write(over, directory);
    });
    constexpr std::chrono::seconds kDeadline{10};
    later(kDeadline, [this, over = over_] { finish_save(over); });
  }
  const auto asked = asked_.find(over_);
  if (asked == asked_.end()) return;
  const auto directory = asked->second;
  asked_.erase(asked);
  write(over_, directory);
}

void ChaosRank::asked_to_write(std::int64_t over, const std::string& directory) {
  if (state_ != State::training) return;
  if (snapshots_.contains(over)) return write(over, directory);
  asked_[over] = directory;
}

void ChaosRank::write(std::int64_t over, const std::string& directory) {
  later(disk_time(), [this, over, directory] {
    const auto snapshot = snapshots_.find(over);
    if (snapshot == snapshots_.end()) return;
    const auto& state = world_.has(PlantedBug::live_snapshot) ? numbers_ : snapshot->second;
    ChaosState own;
    for (std::size_t i = 0; i < kChaosElements; ++i) {
      if (!owns(i, rank_, room_->size())) continue;
      own.push_back(state[i]);
      world_.monitor.saved(over, i, state[i]);
    }
    auto created = world_.disk.create(path_in(directory, file_of(rank_)));
    auto file = created ? std::shared_ptr<WritableFile>(std::move(*created)) : nullptr;
    const bool is_well = file && file->append(std::as_bytes(std::span(own)));
    later(disk_time(), [this, over, file, is_well, own] {
      const bool is_durable = is_well && file->sync() && file->close();
      room_->tell(rank_, 0, [from = rank_, over, is_durable, own](ChaosRank& first) {
        first.peer_has_written(from, over, is_durable, own);
      });
    });
  });
}

void ChaosRank::peer_has_written(int from, std::int64_t over, bool well, const ChaosState& own) {
  if (!save_ || save_->over != over) return;
  if (!well) return finish_save(over);
  save_->written[from] = own;
  const auto needed = world_.has(PlantedBug::early_commit) ? 1 : room_->size();
  if (static_cast<int>(save_->written.size()) == needed) later(disk_time(), [this, over] { commit(over); });
}

std::string ChaosRank::manifest_of_save() const {
  core::Manifest manifest;
  manifest.step = {save_->over};
  manifest.save = save_->directory.substr(save_->directory.size() - 16);
  core::ManifestTensor state{kTensor, core::DType::i64, {static_cast<std::int64_t>(kChaosElements)}, {}};
  const int world = room_->size();
  const auto& values = snapshots_.at(save_->over);
  for (int rank = 0; rank < world; ++rank) {
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < kChaosElements; ++i) {
      if (!owns(i, rank, world)) continue;
      state.shards.push_back(shard_of(i, static_cast<std::uint32_t>(rank), end, values[i]));
      end += sizeof(std::uint64_t);
    }
    manifest.files.push_back({file_of(rank), end, 0, core::hash64(std::span<const std::byte>{})});
  }
  manifest.tensors.push_back(std::move(state));
  return core::to_text(manifest);
}

void ChaosRank::commit(std::int64_t over) {
  if (!save_ || save_->over != over) return;
  const auto name = core::checkpoint_name({over});
  const auto dies_after = std::exchange(world_.dies_in_commit, std::nullopt);
  world_.disk.dies_after = dies_after;
  const auto may_commit = [this] {
    return world_.has(PlantedBug::ghost_commits) ? core::Result<void>{} : check_claim(world_.disk, writer());
  };
  const auto committed = commit_checkpoint(world_.disk, save_->directory, name, manifest_of_save(),
                                           kMaxManifestBytes, may_commit);
  if (committed) world_.monitor.committed(next_.epoch);
  if (committed) {
    core::Retention retention;
    retention.keep_last = 2;
    core::disregard(prune_checkpoints(world_.disk, retention, false, core::StepCount{over}),
                    "tried again later");
    if (world_.has(PlantedBug::prunes_all))
      core::disregard(remove_tree(world_.disk, name), "as the bug has it");
  }
  world_.disk.dies_after.reset();
  world_.monitor.look_at_store(world_.disk);
  if (dies_after) {
    was_hit = true;
    return signal(SIGKILL);
  }
  if (!committed)
    core::disregard(remove_tree(world_.disk, save_->directory),
                    "what is left is cleared away by the next save");
  finish_save(over);
}

CheckpointWriterEpoch ChaosRank::writer() const {
  return {"job", next_.epoch};
}

/// Rank 0 tells all ranks that the save has ended, well or not.
void ChaosRank::finish_save(std::int64_t over) {
  if (!save_ || save_->over != over) return;
  save_.reset();
  room_->tell_others(0, [over](ChaosRank& to) { to.save_is_over(over); });
  save_is_over(over);
}

void ChaosRank::save_is_over(std::int64_t over) {
  saves_over_.insert(over);
  snapshots_.erase(over);
  asked_.erase(over);
  if (!snapshots_.empty()) return;
  set_saving(false);
  if (after_save_) std::exchange(after_save_, nullptr)();
}

/// The one that a restore would choose: the newest of which every byte is right.
std::string ChaosRank::newest_good() const {
  const auto listed = list_checkpoints(world_.disk);
  if (!listed) return "";
  for (const auto& each : *listed) {
    const auto manifest = check_quickly(world_.disk, each.name);
    if (!manifest) continue;
    if (world_.has(PlantedBug::unchecked_load) || verify_checkpoint(world_.disk, each.name, *manifest))
      return each.name;
  }
  return "";
}

/// Each rank reads its part, and all go on if all could.
void ChaosRank::load(const std::string& name) {
  ChaosWords words;
  words.is_well = name.empty() || read(name);
  if (name.empty()) {
    over_ = 0;
    numbers_ = world_.monitor.undisturbed(0);
  }
  may_finish_next_ = knows_last_decision_ = false;
  place_ += 1;
  say(std::move(words), [this, name](const std::vector<ChaosWords>& all) {
    if (!std::ranges::all_of(all, &ChaosWords::is_well)) return restore();
    if (!name.empty()) world_.monitor.loaded(over_, numbers_);
    go_on(false);
  });
}

bool ChaosRank::read(const std::string& name) {
  const auto manifest = check_quickly(world_.disk, name);
  if (!manifest) return false;
  over_ = manifest->step.value;
  for (const auto& shard : manifest->tensors.front().shards) {
    const auto file = manifest->files[shard.file].name;
    const auto bytes = world_.disk.read(path_in(name, file), shard.begin, sizeof(std::uint64_t));
    if (!bytes || bytes->size() != sizeof(std::uint64_t)) return false;
    if (core::hash64(*bytes) != shard.hash && !world_.has(PlantedBug::unchecked_load)) return false;
    std::memcpy(&numbers_[static_cast<std::size_t>(shard.box.offset[0])], bytes->data(),
                sizeof(std::uint64_t));
  }
  return true;
}

}  // namespace troupe::actors
