#include "apps/troupe/checkpoint/rewrite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/files/file_writer.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/staged_directory.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/layout/buffer_layout.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::string_view kStatePrefix = "optimizer.state.";

/// Parameters, or one kind of the optimizer's states, by the name of a tensor.
std::string_view kind_of_state(std::string_view key) {
  if (!key.starts_with(kStatePrefix)) return "";
  return key.substr(0, key.find('.', kStatePrefix.size()));
}

std::vector<core::SaveStructure> ddp_structures(const core::Manifest& manifest) {
  core::SaveStructure all;
  for (const auto& tensor : manifest.tensors) {
    all.pieces.push_back({static_cast<std::uint32_t>(all.tensors.size()), core::Box::whole(tensor.shape)});
    all.tensors.push_back({tensor.key, tensor.dtype, tensor.shape});
  }
  return {std::move(all)};
}

std::vector<core::SaveStructure> zero1_structures(const core::Manifest& manifest, int ranks) {
  std::map<std::string_view, std::int64_t> totals;
  for (const auto& tensor : manifest.tensors)
    totals[kind_of_state(tensor.key)] += core::elements_of(tensor.shape);
  std::vector<core::SaveStructure> structures(static_cast<std::size_t>(ranks));
  std::map<std::string_view, core::ElementRange> places;  // of the last tensor of each kind
  std::map<std::string_view, int> owners;                 // of the first element that is not given away
  for (const auto& tensor : manifest.tensors) {
    const auto kind = kind_of_state(tensor.key);
    auto& place = places[kind];
    place = {place.end, place.end + core::elements_of(tensor.shape)};
    if (place.size() == 0) structures[0].tensors.push_back({tensor.key, tensor.dtype, tensor.shape});
    for (auto at = place.start; at < place.end;) {
      auto& owner = owners[kind];
      const auto part = core::even_part({0, totals[kind]}, ranks, owner);
      const auto end = std::min(place.end, part.end);
      if (at < end) {
        auto& structure = structures[static_cast<std::size_t>(owner)];
        const auto index = static_cast<std::uint32_t>(structure.tensors.size());
        structure.tensors.push_back({tensor.key, tensor.dtype, tensor.shape});
        for (auto& box : core::boxes_of_range(tensor.shape, {at - place.start, end - place.start}))
          structure.pieces.push_back({index, std::move(box)});
        at = end;
      }
      if (at == part.end) ++owner;
    }
  }
  return structures;
}

class CheckpointFiles {
 public:
  CheckpointFiles(const Source& source, actors::Storage& storage, std::string directory)
      : source_(source),
        storage_(storage),
        directory_(std::move(directory)),
        meter_("writing", source.manifest.tensor_bytes()) {}

  /// The files of one rank.
  Result<core::WrittenShards> write(const core::SaveStructure& structure,
                                    std::span<const std::uint32_t> assigned, core::Rank rank) {
    core::WrittenShards written;
    for (const auto& planned : core::plan_files(structure, assigned, rank)) {
      FileWriter file(TRY(storage_.create(actors::path_in(directory_, planned.name))));
      TRY(file.append(std::as_bytes(std::span(planned.header))));
      for (const auto& shard : planned.shards) {
        const auto& piece = structure.pieces[shard.piece];
        const auto* tensor = source_.manifest.find(structure.tensors[piece.tensor].key);
        core::HashStream hash;
        TRY(stream_box(source_, *tensor, tensor->dtype, piece.box, kStreamBytes,
                       [&](std::span<const std::byte> bytes) {
                         hash.add(bytes);
                         meter_.add(bytes.size());
                         return file.append(bytes);
                       }));
        written.hashes.push_back(hash.value());
      }
      TRY(file.finish());
    }
    return written;
  }

  double seconds() const { return meter_.seconds(); }

 private:
  const Source& source_;
  actors::Storage& storage_;
  std::string directory_;
  Meter meter_;
};

Result<core::Manifest> write_files(const Source& source, const Sharding& sharding, actors::Storage& storage,
                                   const std::string& directory, double& seconds) {
  const bool is_ddp = sharding.strategy == "ddp";
  const auto structures =
      is_ddp ? ddp_structures(source.manifest) : zero1_structures(source.manifest, sharding.ranks);
  std::vector<const core::SaveStructure*> ranks;
  for (int rank = 0; rank < sharding.ranks; ++rank)
    ranks.push_back(&structures[is_ddp ? 0 : static_cast<std::size_t>(rank)]);
  const auto plan = TRY(core::plan_save(ranks));
  CheckpointFiles files(source, storage, directory);
  std::vector<core::WrittenShards> written;
  for (int rank = 0; rank < sharding.ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    written.push_back(TRY(files.write(*ranks[index], plan.assigned[index], core::Rank{rank})));
  }
  seconds = files.seconds();
  return core::manifest_of(ranks, plan, written);
}

struct Place {
  std::string root;
  std::string name;
};

/// The directory of checkpoints and the checkpoint's name in it.
Result<Place> place_of(const std::string& directory, core::StepCount step) {
  auto path = std::filesystem::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const auto name = core::checkpoint_name(step);
  const auto last = path.filename().string();
  if (!last.starts_with("step_")) return Place{path.string(), name};
  if (last != name)
    return core::fail(Errc::invalid_argument, "{} cannot be the name of this checkpoint, which is {}", last,
                      name);
  const auto root = path.parent_path().string();
  return Place{root.empty() ? "." : root, name};
}

}  // namespace

Result<Written> write_checkpoint(const Source& source, const Sharding& sharding, const core::Value& topology,
                                 const std::string& directory) {
  const auto place = TRY(place_of(directory, source.manifest.step));
  const auto& root = place.root;
  const auto& name = place.name;
  auto storage = TRY(actors::PosixStorage::open_or_make(root));
  if (actors::check_quickly(*storage, name)) {
    return core::fail(Errc::already_exists,
                      "{} is already there and stays as it is; give another directory, or remove it first",
                      (std::filesystem::path(root) / name).string());
  }
  TRY(say_cleared(*storage, actors::kCheckpointPrefix));
  const auto made = TRY(make_temporary(*storage, name));
  const auto& temporary = made.name;
  Written result;
  auto write = [&]() -> Result<void> {
    auto manifest = TRY(write_files(source, sharding, *storage, temporary, result.seconds));
    manifest.step = source.manifest.step;
    manifest.save = temporary.substr(temporary.rfind('-') + 1);
    manifest.topology = topology;
    manifest.common = source.manifest.common;
    manifest.objects = source.manifest.objects;
    const auto text = core::to_text(manifest);
    TRY(core::parse_manifest(text));
    TRY(actors::commit_checkpoint(*storage, temporary, name, text));
    result.path = (std::filesystem::path(root) / name).string();
    result.bytes = manifest.tensor_bytes();
    result.files = manifest.files.size();
    if (TRY(actors::list_checkpoints(*storage)).front().name == name)
      TRY(actors::write_tracker(*storage, manifest.step));
    return {};
  };
  auto done = write();
  if (done) return result;
  core::disregard(actors::remove_tree(*storage, temporary), "what went wrong before matters more");
  return tl::unexpected(done.error());
}

}  // namespace troupe::apps
