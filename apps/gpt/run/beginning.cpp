#include "apps/gpt/run/beginning.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/replica/copies.hpp"
#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::Result;

namespace {

/// A checkpoint in a storage of its own, or the newest one in it if the name is empty.
struct Origin {
  std::unique_ptr<actors::Storage> storage;
  std::string name;
};

Result<Origin> origin_at(const std::string& path) {
  const std::filesystem::path given = std::filesystem::path(path).lexically_normal();
  const auto folder = given.has_filename() ? given : given.parent_path();
  std::error_code ignored;
  if (!std::filesystem::exists(folder / core::kManifestName, ignored)) {
    return Origin{TRY(actors::PosixStorage::open(folder.string())), ""};
  }
  const auto parent = folder.parent_path().empty() ? std::filesystem::path(".") : folder.parent_path();
  return Origin{TRY(actors::PosixStorage::open(parent.string())), folder.filename().string()};
}

/// Local saves of this rank, and of those beside it, which a restart with other ranks may go on from.
Result<std::vector<core::CopyName>> local_saves(actors::RankWorld& world) {
  if (world.local_storage() == nullptr) return std::vector<core::CopyName>{};
  auto saves = TRY(actors::list_saves(*world.local_storage()));
  for (const auto& [rank, storage] : world.local_storages_beside()) {
    const auto more = TRY(actors::list_saves(*storage));
    saves.insert(saves.end(), more.begin(), more.end());
  }
  return saves;
}

/// For a run from scratch, of which no generation has saved.
Result<void> check_is_new(actors::RankWorld& world, const RunOptions& options) {
  const bool has_checkpoints =
      world.storage() != nullptr && !TRY(actors::list_checkpoints(*world.storage())).empty();
  const bool has_copies = !TRY(local_saves(world)).empty();
  if (!has_checkpoints && !has_copies) return {};
  return core::fail(
      Errc::already_exists, "{} holds {} of another run; give an empty directory, or --resume auto to go on",
      has_checkpoints ? options.world.checkpoint_directory : options.world.local_checkpoint_directory,
      has_checkpoints ? "checkpoints" : "local copies");
}

/// Returns whether `own` holds the checkpoint that the run begins from. Damaged ones do not count: no restart
/// loads them, and a save replaces them.
Result<bool> check_checkpoints(actors::Storage& own, const Origin& origin, const actors::Restored& begun,
                               const RunOptions& options) {
  const auto begun_from = core::to_text(TRY(actors::read_manifest(*origin.storage, begun.name)));
  for (const auto& checkpoint : TRY(actors::list_checkpoints(own))) {
    const auto manifest = actors::check_quickly(own, checkpoint.name);
    if (!manifest && (manifest.error().code == Errc::corrupt || manifest.error().code == Errc::not_found))
      continue;
    if (manifest && core::to_text(*manifest) == begun_from) return true;
    return core::fail(
        Errc::already_exists,
        "{} holds {}, and this run begins from another checkpoint, {} of {}: it would not be the newest, so "
        "a restart would go on from the other one; give another --checkpoints directory, remove the "
        "checkpoints that do not belong to this run, or leave --resume out to go on from {}",
        options.world.checkpoint_directory, checkpoint.name, begun.name, options.resume, checkpoint.name);
  }
  return false;
}

/// For a run that begins from a path: a restart goes on from what the run's own directories hold. Returns as
/// check_checkpoints() does.
Result<bool> check_belongs(actors::RankWorld& world, const Origin& origin, const actors::Restored& begun,
                           const RunOptions& options) {
  const bool is_there =
      world.storage() != nullptr && TRY(check_checkpoints(*world.storage(), origin, begun, options));
  for (const auto& save : TRY(local_saves(world))) {
    if (is_there && save.step.value < begun.step.value) continue;
    return core::fail(
        Errc::already_exists,
        "{} holds local copies after {} steps, which a restart would go on from instead of {} of {}; give "
        "another --local-checkpoints directory, remove the copies, or leave --resume out to go on from them",
        options.world.local_checkpoint_directory, save.step.value, begun.name, options.resume);
  }
  return is_there;
}

/// Compares the settings of a checkpoint (the newest in the storage if the name is empty) before anything is
/// read into memory. One that is damaged will be passed over.
Result<void> check_settings(actors::Storage& storage, std::string name, const RunOptions& options) {
  const auto checkpoints = TRY(actors::list_checkpoints(storage));
  if (name.empty() && !checkpoints.empty()) name = checkpoints.front().name;
  if (name.empty()) return {};
  const auto manifest = actors::check_quickly(storage, name);
  const auto* common = manifest ? manifest->common.find("trainer") : nullptr;
  if (common != nullptr) TRY(compare_with_checkpoint(*common, options.settings, options.force_resume, false));
  return {};
}

bool is_directory_of(const std::string& path, const RunOptions& options) {
  std::error_code ignored;
  return std::filesystem::equivalent(path, options.world.checkpoint_directory, ignored);
}

}  // namespace

Result<Beginning> begin_run(DistributedTrainer& trainer, actors::RankWorld& world,
                            const RunOptions& options) {
  if (trainer.recovered()) return Beginning{trainer.recovered(), true};
  const bool is_restarted = world.epoch().value > 1;
  const bool has_path = options.resume != "auto" && options.resume != "never";
  if (options.resume == "never" && !is_restarted) {
    TRY(check_is_new(world, options));
    return Beginning{};
  }
  // The run's own checkpoints come first, so that a restart does not begin from the given path again.
  const bool has_own = world.storage() != nullptr || world.local_storage() != nullptr;
  if (has_own && (!has_path || is_restarted)) {
    if (world.storage() != nullptr) TRY(check_settings(*world.storage(), {}, options));
    auto restored = TRY(trainer.resume({}));
    if (restored) {
      auto note =
          TRY(compare_with_checkpoint(restored->common, options.settings, options.force_resume, false));
      return Beginning{std::move(restored), true, std::move(note)};
    }
  }
  if (!has_path) return Beginning{};
  const auto origin = TRY(origin_at(options.resume));
  TRY(check_settings(*origin.storage, origin.name, options));
  auto restored = TRY(trainer.resume({origin.storage.get(), origin.name, true}));
  if (!restored) return core::fail(Errc::not_found, "{} holds no checkpoint to resume from", options.resume);
  bool is_own = world.storage() != nullptr && is_directory_of(options.resume, options);
  if (!is_own && !is_restarted) is_own = TRY(check_belongs(world, origin, *restored, options));
  auto note = TRY(compare_with_checkpoint(restored->common, options.settings, options.force_resume, false));
  return Beginning{std::move(restored), is_own, std::move(note)};
}

bool is_about_checkpoints(const core::Error& error) {
  return error.code == Errc::not_found || error.code == Errc::corrupt || error.code == Errc::already_exists ||
         error.code == Errc::mismatch;
}

}  // namespace troupe::apps::gpt
