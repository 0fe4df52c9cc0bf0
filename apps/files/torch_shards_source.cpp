#include "apps/files/torch_shards_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/world/storage/posix.hpp"
#include "apps/files/meter.hpp"
#include "apps/files/strided_files.hpp"
#include "core/errors.hpp"
#include "core/interop/plain_data.hpp"
#include "core/interop/torch_shards.hpp"
#include "posix/mapped_file.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using core::Value;

constexpr const char* kConfigName = "fsdp_config.json";
constexpr std::uint64_t kMostConfigBytes = 1 << 20;
constexpr std::string_view kModel = "model";
constexpr std::string_view kOptimizer = "optim";
constexpr std::string_view kExtra = "extra_state";
/// Added to the number of a file of strided elements until such have numbers.
constexpr std::uint32_t kStrided = std::uint32_t{1} << 31;
constexpr std::size_t kCompareBytes = std::size_t{16} << 20;

std::string file_name(std::string_view kind, int world, int rank) {
  return fmt::format("{}_world_size_{}_rank_{}.pt", kind, world, rank);
}

struct FileOfRank {
  int world = 0;
  int rank = 0;
};

/// A number at the beginning of `text`, which is taken off.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<FileOfRank> file_of_rank(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return std::nullopt;
  name.remove_prefix(kind.size());
  constexpr std::string_view kWorld = "_world_size_";
  constexpr std::string_view kRank = "_rank_";
  if (!name.starts_with(kWorld)) return std::nullopt;
  name.remove_prefix(kWorld.size());
  const auto world = take_number(name);
  if (!world || !name.starts_with(kRank)) return std::nullopt;
  name.remove_prefix(kRank.size());
  const auto rank = take_number(name);
  if (!rank || name != ".pt") return std::nullopt;
  return FileOfRank{*world, *rank};
}

/// The files of one kind, one per rank.
struct RankFiles {
  std::vector<std::uint32_t> numbers;  ///< of the manifest's files
  std::vector<core::TorchArchive> archives;
};

class ShardsReader {
 public:
  ShardsReader(Source& source, const actors::PosixStorage& storage, StridedFiles& strided, bool check)
      : source_(source), storage_(storage), strided_(strided), check_(check) {}

  Result<void> read() {
    names_ = TRY(source_.storage->list(""));
    world_ = TRY(find_world());
    const auto model = TRY(open_all(kModel));
    std::vector<core::TorchParts> parts;
    for (std::size_t rank = 0; rank < model.archives.size(); ++rank)
      parts.push_back(TRY(core::torch_model_parts(model.archives[rank], static_cast<std::int64_t>(rank))));
    TRY(add_tensors(model, parts));
    if (has_any(kOptimizer)) TRY(add_optimizer(parts));
    if (has_any(kExtra))
      source_.left_out.push_back(
          {std::string(kExtra), "schedules and random generators are each rank's own"});
    number_strided();
    auto& tensors = source_.manifest.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const auto& a, const auto& b) { return a.key == b.key; });
    if (twice == tensors.end()) return {};
    return core::fail(Errc::corrupt, "two tensors are called '{}'", twice->key);
  }

 private:
  bool has_any(std::string_view kind) const {
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
      const auto found = file_of_rank(name, kind);
      return found && found->world == world_;
    });
  }

  /// The number of ranks that saved last, as the file beside them says.
  Result<std::optional<int>> configured_world() const {
    if (std::find(names_.begin(), names_.end(), kConfigName) == names_.end()) return std::optional<int>{};
    const auto size = TRY(source_.storage->size(kConfigName));
    const auto bytes = TRY(source_.storage->read(kConfigName, 0, std::min(size, kMostConfigBytes)));
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const auto json = nlohmann::json::parse(text, text + bytes.size(), nullptr, false);
    const auto found = json.is_object() ? json.find("world_size") : json.end();
    if (!json.is_object() || found == json.end() || !found->is_number_integer())
      return core::fail(Errc::corrupt, "{} does not say the world_size", kConfigName);
    return std::optional(found->get<int>());
  }

  Result<int> find_world() const {
    std::set<int> worlds;
    for (const auto& name : names_) {
      if (const auto found = file_of_rank(name, kModel)) worlds.insert(found->world);
    }
    const auto configured = TRY(configured_world());
    if (configured && worlds.contains(*configured) && *configured > 0) return *configured;
    if (configured)
      return core::fail(Errc::corrupt, "{} says that {} ranks saved, and there is no {}", kConfigName,
                        *configured, file_name(kModel, *configured, 0));
    if (worlds.size() == 1 && *worlds.begin() > 0) return *worlds.begin();
    if (worlds.empty())
      return core::fail(Errc::corrupt, "there is no {} of any job", file_name(kModel, 1, 0));
    return core::fail(Errc::corrupt,
                      "there are files of jobs of {} to {} ranks, and no {} says which one saved last; leave "
                      "those of one job",
                      *worlds.begin(), *worlds.rbegin(), kConfigName);
  }

  /// Archives refer to the files' bytes, which stay.
  Result<RankFiles> open_all(std::string_view kind) {
    const std::set<std::string_view> there(names_.begin(), names_.end());
    // A world that is too large to be true shows by its first missing file, before there is memory for it.
    for (int rank = 0; rank < world_; ++rank) {
      if (!there.contains(file_name(kind, world_, rank)))
        return core::fail(Errc::corrupt, "{} is missing; all {} ranks must have saved",
                          file_name(kind, world_, rank), world_);
    }
    RankFiles files;
    for (int rank = 0; rank < world_; ++rank) {
      const auto name = file_name(kind, world_, rank);
      files_.push_back(TRY(posix::MappedFile::open(TRY(storage_.open_file(name)), name)));
      const auto bytes = files_.back().bytes();
      auto archive = core::TorchArchive::open(bytes);
      if (!archive) return core::fail(archive.error().code, "{}: {}", name, archive.error().message);
      files.numbers.push_back(static_cast<std::uint32_t>(source_.manifest.files.size()));
      source_.manifest.files.push_back({name, bytes.size(), 0, 0});
      files.archives.push_back(std::move(*archive));
    }
    if (check_) TRY(check_sums(files));
    return files;
  }

  Result<void> check_sums(const RankFiles& files) const {
    std::uint64_t total = 0;
    for (const auto number : files.numbers) total += files_[number].bytes().size();
    Meter meter("checking", total);
    for (std::size_t i = 0; i < files.archives.size(); ++i) {
      const auto& archive = files.archives[i].files;
      for (const auto& entry : archive.entries()) {
        const auto good = archive.check_crc(entry);
        if (!good)
          return core::fail(Errc::corrupt, "{}: {}", source_.manifest.files[files.numbers[i]].name,
                            good.error().message);
        files_[files.numbers[i]].release(archive.data(entry));
        meter.add(entry.bytes);
      }
    }
    return {};
  }

  Result<void> add_tensors(const RankFiles& files, const std::vector<core::TorchParts>& ranks) {
    for (const auto& odd : ranks.front().left_out) source_.left_out.push_back({odd.key, odd.reason});
    for (const auto& tensor : TRY(core::merge_torch_parts(ranks))) {
      if (check_ || !tensor.is_dtensor) TRY(compare_copies(files, tensor));
      core::ManifestTensor described{tensor.key, tensor.dtype, tensor.shape, {}};
      for (const auto& shard : tensor.shards) described.shards.push_back(placed(files, shard, tensor.dtype));
      std::sort(described.shards.begin(), described.shards.end(),
                [](const auto& a, const auto& b) { return a.box < b.box; });
      source_.manifest.tensors.push_back(std::move(described));
    }
    return {};
  }

  std::span<const std::byte> stored_of(const RankFiles& files, const core::TorchShard& shard) const {
    return files_[files.numbers[shard.rank]].bytes().subspan(shard.offset, shard.stored_bytes);
  }

  /// Strided elements get files of their own, whose numbers follow when all others have one.
  core::ManifestShard placed(const RankFiles& files, const core::TorchShard& shard, core::DType dtype) {
    const auto number = files.numbers[shard.rank];
    if (shard.strides.empty()) return {shard.box, number, shard.offset, shard.offset + shard.bytes, 0};
    const auto name = source_.manifest.files[number].name + " (strided)";
    const auto begin = strided_.append(
        name, {stored_of(files, shard), core::size_of(dtype), shard.box.extent, shard.strides});
    const auto [place, is_new] =
        strided_numbers_.try_emplace(number, static_cast<std::uint32_t>(strided_numbers_.size()));
    return {shard.box, kStrided + place->second, begin, begin + shard.bytes, 0};
  }

  void number_strided() {
    std::vector<std::string> names(strided_numbers_.size());
    for (const auto& [number, index] : strided_numbers_)
      names[index] = source_.manifest.files[number].name + " (strided)";
    const auto first = static_cast<std::uint32_t>(source_.manifest.files.size());
    for (const auto& name : names) source_.manifest.files.push_back({name, strided_.size_of(name), 0, 0});
    for (auto& tensor : source_.manifest.tensors) {
      for (auto& shard : tensor.shards) {
        if (shard.file >= kStrided) shard.file = first + shard.file - kStrided;
      }
    }
    if (!names.empty()) strided_.keep(std::move(files_));
  }

  Result<void> compare_copies(const RankFiles& files, const core::MergedTensor& tensor) const {
    std::map<core::Box, const core::TorchShard*> firsts;
    if (!tensor.copies.empty()) {
      for (const auto& shard : tensor.shards) firsts.emplace(shard.box, &shard);
    }
    for (const auto& copy : tensor.copies) {
      const auto& first = *firsts.at(copy.box);
      const auto& a = files_[files.numbers[first.rank]];
      const auto& b = files_[files.numbers[copy.rank]];
      // Ranks of one mesh have the same strides.
      if (first.strides != copy.strides || first.stored_bytes != copy.stored_bytes) continue;
      for (std::uint64_t at = 0; at < first.stored_bytes; at += kCompareBytes) {
        const auto count = std::min<std::uint64_t>(kCompareBytes, first.stored_bytes - at);
        const auto mine = a.bytes().subspan(first.offset + at, count);
        const auto other = b.bytes().subspan(copy.offset + at, count);
        if (std::memcmp(mine.data(), other.data(), count) != 0)
          return core::fail(Errc::corrupt,
                            "ranks {} and {} have other values of '{}', of which each should have a copy",
                            first.rank, copy.rank, tensor.key);
        a.release(mine);
        b.release(other);
      }
    }
    return {};
  }

  Result<void> add_optimizer(const std::vector<core::TorchParts>& model) {
    const auto files = TRY(open_all(kOptimizer));
    std::vector<core::TorchParts> parts;
    for (std::size_t rank = 0; rank < files.archives.size(); ++rank)
      parts.push_back(TRY(
          core::torch_optimizer_parts(files.archives[rank], model[rank], static_cast<std::int64_t>(rank))));
    TRY(add_tensors(files, parts));
    const auto groups = core::torch_parameter_groups(files.archives.front());
    if (!groups) return {};
    core::ValueBudget budget;
    auto value = core::value_from_pickle(*groups, budget);
    if (!value) {
      source_.left_out.push_back({"optimizer.param_groups", value.error().message});
    } else {
      source_.manifest.common = Value::Map{{"optimizer", Value::Map{{"param_groups", std::move(*value)}}}};
    }
    return {};
  }

  Source& source_;
  const actors::PosixStorage& storage_;
  StridedFiles& strided_;
  std::map<std::uint32_t, std::uint32_t> strided_numbers_;  ///< by the number of the real file
  bool check_;
  int world_ = 0;
  std::vector<std::string> names_;
  std::vector<posix::MappedFile> files_;  ///< as the manifest's
};

}  // namespace

bool holds_torch_shards(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    if (file_of_rank(at->path().filename().string(), kModel)) return true;
  }
  return false;
}

Result<Source> open_torch_shards(const std::string& directory, bool check, actors::Links links) {
  auto storage = TRY(actors::PosixStorage::open(directory, links));
  const auto& files = *storage;
  auto strided = std::make_unique<StridedFiles>(std::move(storage));
  auto& apart = *strided;
  Source source{SourceForm::torch_shards, directory, std::move(strided), {}, false, {}};
  auto done = ShardsReader(source, files, apart, check).read();
  if (!done) return core::fail(done.error().code, "{}: {}", directory, done.error().message);
  return source;
}

}  // namespace troupe::apps
