#include "apps/files/safetensors_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "actors/world/storage/posix.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/errors.hpp"
#include "core/interop/lfs_pointer.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kLengthBytes = 8;

/// Collects the tensors of files.
class Collector {
 public:
  explicit Collector(Source& source) : source_(source) {}

  /// With an index, only what it gives to this file.
  Result<void> add(const std::string& name, const core::HuggingFaceIndex* index) {
    const auto beginning = source_.storage->read(name, 0, core::kPointerBytes);
    if (beginning) TRY(core::check_is_no_pointer(*beginning, name));
    auto file = read_file(name);
    if (!file) return core::fail(file.error().code, "{}: {}", name, file.error().message);
    const auto& [header, offsets] = *file;
    const auto number = static_cast<std::uint32_t>(source_.manifest.files.size());
    const auto size = TRY(source_.storage->size(name));
    source_.manifest.files.push_back({name, size, header.data_begin, 0});
    for (std::size_t i = 0; i < header.entries.size(); ++i) {
      const auto& entry = header.entries[i];
      if (index != nullptr) {
        const auto given = index->weight_map.find(entry.name);
        if (given == index->weight_map.end()) {
          source_.left_out.push_back({entry.name, name + " has it, the index does not"});
          continue;
        }
        if (given->second != name) continue;
      }
      TRY(add_part(entry, offsets[i], number));
    }
    for (const auto& [tensor, dtype, begin, end] : header.unknown) {
      unknown_.insert(tensor);
      source_.left_out.push_back(
          {tensor, fmt::format("its element type {} is not one that Troupe has ({} bytes in {})", dtype,
                               end - begin, name)});
    }
    return {};
  }

  Result<void> finish() {
    for (auto& [key, tensor] : tensors_) {
      std::vector<core::Box> boxes;
      for (const auto& shard : tensor.shards) boxes.push_back(shard.box);
      auto good = core::check_exact_cover(tensor.shape, boxes);
      if (!good) return core::fail(Errc::corrupt, "tensor '{}': {}", key, good.error().message);
      std::sort(tensor.shards.begin(), tensor.shards.end(),
                [](const auto& a, const auto& b) { return a.box < b.box; });
      source_.manifest.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  bool has(const std::string& key) const { return tensors_.contains(key) || unknown_.contains(key); }

 private:
  struct File {
    core::SafetensorsHeader header;
    std::vector<core::Shape> offsets;
  };

  Result<File> read_file(const std::string& name) {
    const auto bytes = TRY(source_.storage->size(name));
    const auto first = TRY(source_.storage->read(name, 0, kLengthBytes));
    const auto header_bytes = TRY(core::safetensors_header_bytes(first, bytes));
    const auto beginning = TRY(source_.storage->read(name, 0, header_bytes));
    File file{TRY(core::parse_safetensors_header(beginning, bytes)), {}};
    file.offsets = TRY(core::sharding_offsets(file.header));
    return file;
  }

  Result<void> add_part(const core::SafetensorsEntry& entry, const core::Shape& offset, std::uint32_t file) {
    auto [found, is_new] = tensors_.try_emplace(entry.name);
    auto& tensor = found->second;
    if (is_new) {
      tensor.key = entry.name;
      tensor.dtype = entry.dtype;
      tensor.shape.resize(entry.shape.size());
    }
    if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size())
      return core::fail(Errc::corrupt,
                        "tensor '{}' has parts of other dtypes or numbers of axes in other files; are these "
                        "files of one model?",
                        entry.name);
    // The whole is as large as the parts reach.
    for (std::size_t axis = 0; axis < offset.size(); ++axis) {
      if (offset[axis] < 0 || offset[axis] > (std::int64_t{1} << 62) - entry.shape[axis])
        return core::fail(Errc::corrupt, "tensor '{}' begins at {}, which cannot be", entry.name,
                          core::to_string(offset));
      tensor.shape[axis] = std::max(tensor.shape[axis], offset[axis] + entry.shape[axis]);
    }
    auto good = core::check_shape(tensor.shape);
    if (!good) return core::fail(Errc::corrupt, "tensor '{}': {}", entry.name, good.error().message);
    if (core::elements_of(entry.shape) == 0) return {};
    core::ManifestShard part{{offset, entry.shape}, file, entry.begin, entry.end, 0};
    for (const auto& other : tensor.shards) {
      if (other.box == part.box)
        return core::fail(
            Errc::corrupt, "tensor '{}' is in {} and again in {}; leave the files of one model only",
            entry.name, source_.manifest.files[other.file].name, source_.manifest.files[file].name);
    }
    tensor.shards.push_back(std::move(part));
    return {};
  }

  Source& source_;
  std::map<std::string, core::ManifestTensor> tensors_;
  std::set<std::string> unknown_;  ///< whose element types are
};

/// A head that is tied to the embedding has no tensor of its own, though some writers list it.
bool may_be_tied(const std::string& key, const Collector& collector) {
  constexpr std::string_view kHead = "lm_head.weight";
  if (!key.ends_with(kHead)) return false;
  const auto prefix = key.substr(0, key.size() - kHead.size());
  return collector.has(prefix + "model.embed_tokens.weight");
}

Result<Source> read_indexed(Source source) {
  const auto index = TRY(read_index(*source.storage, std::string(core::kHuggingFaceIndexName)));
  std::map<std::string, std::size_t> files;
  for (const auto& [key, file] : index.weight_map) ++files[file];
  Collector collector(source);
  for (const auto& [file, count] : files) {
    auto added = collector.add(file, &index);
    if (!added && added.error().code == Errc::not_found)
      return core::fail(Errc::corrupt, "the index gives {} tensors to a file that is missing: {}", count,
                        added.error().message);
    if (!added) return tl::unexpected(added.error());
  }
  for (const auto& [key, file] : index.weight_map) {
    if (collector.has(key)) continue;
    if (!may_be_tied(key, collector))
      return core::fail(Errc::corrupt, "the index says that '{}' is in {}, which does not have it", key,
                        file);
    source.left_out.push_back({key, "the index names it, no file has it; a tied head is the embedding"});
  }
  TRY(collector.finish());
  return source;
}

bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

Result<Source> open_in(const std::filesystem::path& directory, actors::Links links, actors::Reads reads) {
  auto storage = TRY(actors::PosixStorage::open(directory.string(), links, reads));
  return Source{SourceForm::safetensors, directory.string(), std::move(storage), {}, false, {}};
}

}  // namespace

bool holds_safetensors(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().string().ends_with(kSafetensorsSuffix) && is_file(at->path())) return true;
  }
  return is_file(std::filesystem::path(directory) / core::kHuggingFaceIndexName);
}

Result<core::HuggingFaceIndex> read_index(actors::Storage& storage, const std::string& name) {
  const auto size = TRY(storage.size(name));
  if (size > kMaxIndexBytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, more than an index may have", name, size);
  const auto bytes = TRY(storage.read(name, 0, size));
  TRY(core::check_is_no_pointer(bytes, name));
  return core::parse_huggingface_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<Source> open_safetensors_files(const std::string& directory, const std::set<std::string>& files,
                                      actors::Links links, actors::Reads reads) {
  auto source = TRY(open_in(directory, links, reads));
  Collector collector(source);
  for (const auto& name : files) TRY(collector.add(name, nullptr));
  TRY(collector.finish());
  return source;
}

Result<Source> open_safetensors(const std::string& directory, actors::Links links, actors::Reads reads) {
  const std::string single(core::kHuggingFaceFileName);
  if (is_file(std::filesystem::path(directory) / single)) {
    auto source = TRY(open_safetensors_files(directory, {single}, links, reads));
    for (const auto& name : TRY(source.storage->list(""))) {
      if (name != single && name.ends_with(kSafetensorsSuffix))
        source.left_out.push_back({name, "a file beside model.safetensors, which is the model"});
    }
    return source;
  }
  auto source = TRY(open_in(directory, links, reads));
  if (is_file(std::filesystem::path(directory) / core::kHuggingFaceIndexName))
    return read_indexed(std::move(source));
  Collector collector(source);
  for (const auto& name : TRY(source.storage->list(""))) {
    if (name.ends_with(kSafetensorsSuffix) && is_file(std::filesystem::path(directory) / name))
      TRY(collector.add(name, nullptr));
  }
  TRY(collector.finish());
  return source;
}

Result<Source> open_safetensors_file(const std::string& path) {
  std::error_code error;
  const auto file = std::filesystem::canonical(path, error);
  if (error) return core::fail(Errc::io, "cannot read {}: {}", path, error.message());
  auto source = TRY(open_in(file.parent_path(), actors::Links::refuse, actors::Reads::through_cache));
  source.path = path;
  Collector collector(source);
  TRY(collector.add(file.filename().string(), nullptr));
  TRY(collector.finish());
  return source;
}

}  // namespace troupe::apps
