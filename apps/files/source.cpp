#include "apps/files/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/reader.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/command_line/say.hpp"
#include "apps/files/text.hpp"
#include "core/element_range.hpp"
#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using actors::PosixStorage;
using core::Errc;
using core::Result;

Result<Source> open_named(const std::string& path, actors::Links links, actors::Reads reads) {
  auto storage = TRY(PosixStorage::open(path, links, reads));
  Source source{SourceForm::troupe, path, std::move(storage), {}, true, {}};
  source.manifest = TRY(actors::check_quickly(*source.storage, ""));
  source.torch = torch_state_of(source.manifest.common);
  return source;
}

Result<Source> open_newest(const std::string& path, actors::Links links, actors::Reads reads) {
  auto storage = TRY(PosixStorage::open(path, links));
  const auto listed = TRY(actors::list_checkpoints(*storage));
  if (listed.empty()) {
    return core::fail(Errc::not_found,
                      "{} is not a checkpoint: expected {} or directories such as step_00000200 in it, found "
                      "neither; a directory without a manifest is a save that never finished",
                      path, core::kManifestName);
  }
  for (const auto& checkpoint : listed) {
    const auto inner = (std::filesystem::path(path) / checkpoint.name).string();
    std::error_code error;
    const bool leads_out = links == actors::Links::refuse && std::filesystem::is_symlink(inner, error);
    auto source = leads_out ? core::fail(Errc::corrupt, "it is a link; --follow-links reads through it")
                            : open_named(inner, links, reads);
    if (source) {
      say_note(fmt::format("{} of {} in {}: {}",
                           &checkpoint == &listed.front() ? "the newest" : "the newest whole one",
                           listed.size(), path, checkpoint.name));
      return source;
    }
    say_note(fmt::format("passed over {}: {}", checkpoint.name, printable(source.error().message)));
  }
  return core::fail(Errc::corrupt, "none of the {} checkpoints in {} is whole", listed.size(), path);
}

/// By name only: whether they are whole is seen later.
bool holds_checkpoints(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return false;
  if (std::filesystem::exists(std::filesystem::path(path) / core::kManifestName, error)) return true;
  const auto storage = PosixStorage::open(path);
  if (!storage) return false;
  const auto listed = actors::list_checkpoints(**storage);
  return listed && !listed->empty();
}

/// The files of a save that never ended look like ones of PyTorch that are whole.
bool is_unfinished(const std::string& path) {
  auto directory = std::filesystem::path(path).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();
  return directory.filename().string().starts_with("step_");
}

}  // namespace

std::string_view describe(SourceForm form) noexcept {
  static constexpr auto kNames = core::enum_names<SourceForm>(
      "a checkpoint of Troupe", "a checkpoint of torch.distributed.checkpoint", "safetensors files",
      "files of PyTorch, one per rank", "a file of torch.save",
      "a model and its optimizer as Accelerate saves them");
  return kNames[form];
}

Result<Source> open_checkpoint(const std::string& path, actors::Links links, actors::Reads reads) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return core::fail(Errc::not_found, "{} does not exist; give the path of a checkpoint", path);
  if (status.type() != std::filesystem::file_type::directory)
    return core::fail(Errc::not_found, "{} is not a checkpoint: expected a directory", path);
  const auto manifest = std::filesystem::status(std::filesystem::path(path) / core::kManifestName, error);
  if (manifest.type() == std::filesystem::file_type::not_found) return open_newest(path, links, reads);
  if (manifest.type() == std::filesystem::file_type::regular) return open_named(path, links, reads);
  return core::fail(Errc::not_found, "{} is not a checkpoint: its {} is not a regular file", path,
                    core::kManifestName);
}

Result<Source> open_source(const std::string& path, actors::Links links) {
  if (!holds_checkpoints(path) && !is_unfinished(path)) {
    auto foreign = open_foreign(path, false, links);
    if (foreign || foreign.error().code != Errc::not_found) return foreign;
  }
  return open_checkpoint(path, links);
}

Result<void> stream_box(const Source& source, const core::ManifestTensor& tensor, core::DType dtype,
                        const core::Box& box, std::size_t chunk_bytes, const ByteSink& sink) {
  const auto width = core::size_of(dtype);
  const auto window = static_cast<std::int64_t>(std::max<std::size_t>(chunk_bytes / width, 1));
  const auto elements = box.elements();
  std::vector<std::byte> memory(static_cast<std::size_t>(std::min(window, elements)) * width);
  actors::ReadOptions options;
  options.verify = false;
  options.chunk_bytes = std::min<std::size_t>(chunk_bytes, options.chunk_bytes);
  for (std::int64_t first = 0; first < elements; first += window) {
    const auto last = std::min(first + window, elements);
    std::vector<core::LoadTarget> targets;
    std::vector<std::span<std::byte>> places;
    std::size_t at = 0;
    for (auto& part : core::boxes_of_range(box.extent, {first, last})) {
      for (std::size_t axis = 0; axis < part.offset.size(); ++axis) part.offset[axis] += box.offset[axis];
      const auto bytes = static_cast<std::size_t>(part.elements()) * width;
      places.emplace_back(memory.data() + at, bytes);
      at += bytes;
      targets.push_back({tensor.key, dtype, tensor.shape, std::move(part), false});
    }
    TRY(actors::read_tensors(*source.storage, "", source.manifest, targets, places, options));
    TRY(sink(std::span<const std::byte>(memory.data(), at)));
  }
  return {};
}

}  // namespace troupe::apps
