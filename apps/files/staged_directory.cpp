#include "apps/files/staged_directory.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/command_line/say.hpp"
#include "apps/files/text.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "posix/entropy.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

namespace {

/// Without a last slash.
std::filesystem::path place_of(const std::string& path) {
  const auto place = std::filesystem::path(path).lexically_normal();
  return place.has_filename() ? place : place.parent_path();
}

}  // namespace

Result<void> StagedDirectory::check_path(const std::string& path) {
  const auto place = place_of(path);
  const auto name = place.filename().string();
  if (name.empty() || name == "." || name == "..")
    return core::fail(Errc::invalid_argument, "'{}' names no new directory", path);
  std::error_code error;
  if (std::filesystem::symlink_status(place, error).type() != std::filesystem::file_type::not_found) {
    return core::fail(Errc::already_exists,
                      "{} is already there and stays as it is; give another name, or remove it first", path);
  }
  return {};
}

Result<StagedDirectory> StagedDirectory::create(const std::string& path) {
  TRY(check_path(path));
  const auto place = place_of(path);
  const auto name = place.filename().string();
  const auto above = place.parent_path().string();
  auto storage = TRY(actors::PosixStorage::open_or_make(above.empty() ? "." : above));
  TRY(say_cleared(*storage, name + ".tmp-"));
  auto made = TRY(make_temporary(*storage, name));
  return StagedDirectory(std::move(storage), name, std::move(made));
}

Result<HeldDirectory> make_temporary(actors::Storage& storage, const std::string& name) {
  constexpr int kTries = 5;
  for (int i = 1;; ++i) {
    auto temporary = fmt::format("{}.tmp-{}", name, posix::unique_name());
    auto hold = actors::make_held_directory(storage, temporary);
    if (hold) return HeldDirectory{std::move(temporary), std::move(*hold)};
    if (hold.error().code != Errc::aborted || i == kTries) return tl::unexpected(hold.error());
  }
}

Result<void> say_cleared(actors::Storage& storage, std::string_view prefix) {
  for (const auto& name : TRY(actors::clear_abandoned(storage, prefix)))
    say_note(fmt::format("removed {}, which was never finished", printable(name)));
  return {};
}

Result<void> StagedDirectory::check_place(const std::string& path) {
  auto probe = TRY(create(path));
  return probe.write("probe", std::as_bytes(std::span("probe")));
}

StagedDirectory::~StagedDirectory() {
  if (!storage_) return;
  core::disregard(actors::remove_tree(*storage_, temporary_.name),
                  "what was not finished has its reason already");
}

Result<std::unique_ptr<actors::WritableFile>> StagedDirectory::file(std::string_view name) {
  return storage_->create(actors::path_in(temporary_.name, name));
}

Result<void> StagedDirectory::write(std::string_view name, std::span<const std::byte> bytes) {
  auto out = TRY(file(name));
  TRY(out->append(bytes));
  TRY(out->sync());
  return out->close();
}

Result<void> StagedDirectory::finish() {
  TRY(storage_->sync_directory(temporary_.name));
  TRY(storage_->rename(temporary_.name, name_));
  TRY(storage_->sync_directory(""));
  storage_.reset();
  temporary_.hold = {};
  return {};
}

}  // namespace troupe::apps
