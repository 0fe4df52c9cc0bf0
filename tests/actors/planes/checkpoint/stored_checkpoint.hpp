#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/storage.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/saved_job.hpp"

namespace troupe::actors {

/// A checkpoint of two ranks whose bits depend on its step.
inline core::SavedJob small_checkpoint(std::int64_t step) {
  std::vector<core::SaveStructure> structures(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& structure = structures[static_cast<std::size_t>(rank)];
    structure.tensors = {{"a", core::DType::f32, {4, 3}}, {"b", core::DType::bf16, {5}}};
    structure.pieces = {{0, {{2 * rank, 0}, {2, 3}}}, {1, core::Box::whole({5})}};
  }
  const auto plan = core::plan_save(core::views_of(structures));
  auto saved = core::save(structures, *plan, [step](const core::Tensor& tensor) {
    auto bytes = core::content_of(tensor);
    for (auto& byte : bytes) byte ^= static_cast<std::byte>(step * 37);
    return bytes;
  });
  saved.manifest.step = core::StepCount{step};
  saved.manifest.save = core::hex64(static_cast<std::uint64_t>(step) * 1000);
  return saved;
}

inline core::Result<void> write_whole(Storage& storage, const std::string& path,
                                      std::span<const std::byte> bytes) {
  auto file = TRY(storage.create(path));
  TRY(file->append(bytes));
  TRY(file->sync());
  return file->close();
}

/// What a save does: the files of all ranks, then the commit.
inline core::Result<void> store(Storage& storage, const core::SavedJob& saved) {
  const auto name = core::checkpoint_name(saved.manifest.step);
  const auto directory = name + ".tmp-" + saved.manifest.save;
  TRY(storage.make_directory(directory));
  for (const auto& [file, bytes] : saved.files) TRY(write_whole(storage, path_in(directory, file), bytes));
  return commit_checkpoint(storage, directory, name, core::to_text(saved.manifest));
}

inline core::Bytes bytes_at(Storage& storage, const std::string& path) {
  const auto size = storage.size(path);
  if (!size) return {};
  auto bytes = storage.read(path, 0, *size);
  return bytes ? *bytes : core::Bytes{};
}

/// Every file is there with the bits of `saved`, and nothing else.
inline bool is_whole(Storage& storage, const core::SavedJob& saved) {
  const auto name = core::checkpoint_name(saved.manifest.step);
  const auto names = storage.list(name);
  if (!names || names->size() != saved.files.size() + 1) return false;
  for (const auto& [file, bytes] : saved.files) {
    if (bytes_at(storage, path_in(name, file)) != bytes) return false;
  }
  const auto manifest = check_quickly(storage, name);
  return manifest && *manifest == saved.manifest && verify_checkpoint(storage, name, *manifest);
}

/// The names of all that are called checkpoints, the newest first.
inline std::vector<std::int64_t> steps_in(Storage& storage) {
  std::vector<std::int64_t> steps;
  const auto found = list_checkpoints(storage).value();
  for (const auto& checkpoint : found) steps.push_back(checkpoint.step.value);
  return steps;
}

}  // namespace troupe::actors
