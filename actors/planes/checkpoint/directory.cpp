#include "actors/planes/checkpoint/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/storage/holds.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

constexpr std::string_view kPrefix = kCheckpointPrefix;
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kRemoved = ".removed";
constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

/// "NAME.tmp-" and 16 hexadecimal digits.
bool is_temporary(std::string_view name) {
  const auto at = name.rfind(kTemporary);
  if (at == std::string_view::npos) return false;
  const auto save = name.substr(at + kTemporary.size());
  return save.size() == 16 && save.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::optional<core::StepCount> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = core::parse_number<std::int64_t>(name.substr(kPrefix.size()),
                                                     {0, std::numeric_limits<std::int64_t>::max()});
  return step ? std::optional(core::StepCount{*step}) : std::nullopt;
}

Result<void> write_file(Storage& storage, const std::string& path, std::string_view text) {
  auto file = TRY(storage.create(path));
  TRY(file->append(std::as_bytes(std::span(text))));
  TRY(file->sync());
  return file->close();
}

/// So that a damaged checkpoint does not stand in the way of a good one.
Result<void> set_aside(Storage& storage, std::string_view name, std::string_view directory) {
  const auto listed = TRY(storage.list(""));
  if (std::find(listed.begin(), listed.end(), name) == listed.end()) return {};
  // Its bytes are read: one that a restore skipped for a flipped bit must not stay in the way.
  const auto manifest = check_quickly(storage, name);
  const auto whole =
      manifest ? verify_checkpoint(storage, name, *manifest) : tl::unexpected(manifest.error());
  if (whole) {
    return core::fail(Errc::already_exists,
                      "the checkpoint {} is already there and good; it stays, and this save is dropped",
                      name);
  }
  const bool damaged = whole.error().code == Errc::corrupt || whole.error().code == Errc::not_found;
  // Another version, or an unresponsive disk, does not mean that it is damaged.
  if (!damaged) {
    return core::fail(whole.error().code,
                      "a checkpoint {} is already there, and whether it is good is not known; this save is "
                      "dropped: {}",
                      name, whole.error().message);
  }
  return storage.rename(name, fmt::format("{}.damaged-{}", name, directory.substr(directory.rfind('-') + 1)));
}

}  // namespace

std::string path_in(std::string_view name, std::string_view file) {
  return name.empty() ? std::string(file) : fmt::format("{}/{}", name, file);
}

Result<std::vector<CheckpointName>> list_checkpoints(Storage& storage) {
  std::vector<CheckpointName> found;
  for (auto& name : TRY(storage.list(""))) {
    if (auto step = step_of(name)) found.push_back({std::move(name), *step});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

Result<core::Manifest> read_manifest(Storage& storage, std::string_view name) {
  const auto path = path_in(name, core::kManifestName);
  const auto size = TRY(storage.size(path));
  if (size > kMaxManifestBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, more than a manifest may have", path, size);
  const auto bytes = TRY(storage.read(path, 0, size));
  auto manifest = core::parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest) return core::fail(manifest.error().code, "{}: {}", path, manifest.error().message);
  return manifest;
}

Result<core::Manifest> check_quickly(Storage& storage, std::string_view name) {
  auto manifest = TRY(read_manifest(storage, name));
  for (const auto& file : manifest.files) {
    const auto path = path_in(name, file.name);
    const auto size = storage.size(path);
    if (!size && size.error().code == Errc::not_found)
      return core::fail(Errc::corrupt, "{} is missing: the manifest lists it", path);
    if (!size) return tl::unexpected(size.error());
    if (*size != file.bytes)
      return core::fail(Errc::corrupt, "{} has {} bytes, the manifest says {}", path, *size, file.bytes);
  }
  return manifest;
}

Result<void> commit_checkpoint(Storage& storage, std::string_view directory, std::string_view name,
                               std::string_view manifest, std::uint64_t max_manifest_bytes,
                               const std::function<Result<void>()>& may_commit) {
  if (manifest.size() > max_manifest_bytes) {
    return core::fail(Errc::invalid_argument,
                      "the manifest has {} bytes, and readers take at most {}: it describes too many parts "
                      "of tensors, or too large values",
                      manifest.size(), max_manifest_bytes);
  }
  const auto path = path_in(directory, core::kManifestName);
  TRY(write_file(storage, path + ".tmp", manifest));
  TRY(storage.rename(path + ".tmp", path));
  TRY(storage.sync_directory(directory));
  TRY(set_aside(storage, name, directory));
  if (may_commit) TRY(may_commit());
  TRY(storage.rename(directory, name));
  return storage.sync_directory("");
}

Result<void> write_tracker(Storage& storage, core::StepCount step) {
  const auto temporary = fmt::format("{}.tmp", kTracker);
  TRY(write_file(storage, temporary, fmt::format("{}\n", step.value)));
  TRY(storage.rename(temporary, kTracker));
  return storage.sync_directory("");
}

Result<void> remove_tree(Storage& storage, std::string_view path) {
  auto names = storage.list(path);
  if (names) {
    for (const auto& name : *names) TRY(remove_tree(storage, path_in(path, name)));
  }
  auto removed = storage.remove(path);
  if (!removed && removed.error().code == Errc::not_found) return {};
  return removed;
}

bool is_good_quickly(Storage& storage, const std::string& name) {
  return check_quickly(storage, name).has_value();
}

Result<std::vector<std::string>> prune_checkpoints(Storage& storage, const core::Retention& retention,
                                                   bool dry_run, std::optional<core::StepCount> newest,
                                                   const CheckpointJudge& is_good) {
  std::vector<std::string> removed;
  if (retention.keep_last <= 0) return removed;
  int good = 0;
  for (const auto& checkpoint : TRY(list_checkpoints(storage))) {
    if (newest && checkpoint.step > *newest) continue;
    if (!is_good(storage, checkpoint.name)) continue;
    const bool is_kept = ++good <= retention.keep_last ||
                         (retention.keep_every > 0 && checkpoint.step.value % retention.keep_every == 0);
    if (is_kept) continue;
    removed.push_back(checkpoint.name);
    if (dry_run) continue;
    // Renamed first, so that nothing takes what is left of it for a checkpoint.
    const auto going = checkpoint.name + std::string(kRemoved);
    TRY(remove_tree(storage, going));
    TRY(storage.rename(checkpoint.name, going));
    TRY(storage.sync_directory(""));
    TRY(remove_tree(storage, going));
  }
  return removed;
}

Result<bool> clear_unfinished(Storage& storage) {
  bool is_clear = true;
  for (const auto& name : TRY(storage.list(""))) {
    if (!name.starts_with(kPrefix)) continue;
    const bool is_temporary = name.find(kTemporary) != std::string::npos;
    if (is_temporary && is_held(storage, name) == Held::yes) {
      is_clear = false;
    } else if (is_temporary || name.ends_with(kRemoved)) {
      TRY(remove_tree(storage, name));
    }
  }
  return is_clear;
}

Result<std::vector<std::string>> clear_abandoned(Storage& storage, std::string_view prefix) {
  std::vector<std::string> cleared;
  for (auto& name : TRY(storage.list(""))) {
    if (!name.starts_with(prefix)) continue;
    const bool is_removed = prefix == kPrefix && name.ends_with(kRemoved);
    if (!is_removed && !is_temporary(name)) continue;
    // Held while it goes, so that nobody begins to write there.
    const Hold hold = hold_directory(storage, name);
    if (!is_removed && hold.is_empty()) continue;
    TRY(remove_tree(storage, name));
    cleared.push_back(std::move(name));
  }
  return cleared;
}

}  // namespace troupe::actors
