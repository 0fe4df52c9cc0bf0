#include "actors/planes/checkpoint/reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/checkpoint/scatter.hpp"
#include "actors/world/io_worker.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

class ShardReader {
 public:
  ShardReader(Storage& storage, std::string_view name, const core::Manifest& manifest,
              const ReadOptions& options)
      : storage_(storage), name_(name), manifest_(manifest), options_(options) {}

  Result<void> read(const ShardTask& task, std::span<const core::LoadTarget> targets,
                    std::span<const std::span<std::byte>> memory) {
    if (options_.uploads == nullptr) return read(task, targets, memory, nullptr);
    const auto upload = options_.uploads->take();
    TRY(read(task, targets, memory, upload.get()));
    return upload->settle();
  }

  /// Only to check it against its hash.
  Result<void> verify(const core::ManifestTensor& tensor, const core::ManifestShard& shard) {
    const core::LoadRead nowhere{&tensor, &shard, {}};
    return read_parts(nowhere, ShardScatter(nowhere, {}, {}), nullptr);
  }

 private:
  Result<void> read(const ShardTask& task, std::span<const core::LoadTarget> targets,
                    std::span<const std::span<std::byte>> memory, Upload* upload) {
    if (!task.whole.empty()) {
      TRY(read_whole(task.read, task.whole));
      return ShardScatter(task.read, targets, memory).take(0, task.whole, upload);
    }
    if (upload == nullptr) {
      const auto place = place_of_whole(task.read, targets, memory);
      if (!place.empty()) return read_whole(task.read, place);
      // A hash covers the whole shard.
      const auto runs =
          options_.verify ? std::vector<StraightRun>{} : straight_runs(task.read, targets, memory);
      for (const auto& run : runs) TRY(fill(task.read, run.begin, run.memory));
      if (!runs.empty()) return {};
    }
    return read_parts(task.read, ShardScatter(task.read, targets, memory), upload);
  }

  Result<void> fill(const core::LoadRead& read, std::uint64_t offset, std::span<std::byte> bytes) {
    const auto& file = manifest_.files[read.shard->file];
    const auto path = path_in(name_, file.name);
    const auto count = TRY(storage_.read_into(path, read.shard->begin + offset, bytes));
    if (count != bytes.size())
      return core::fail(Errc::corrupt, "{} ends at byte {}, the manifest says {}", path,
                        read.shard->begin + offset + count, file.bytes);
    if (options_.progress) options_.progress(bytes.size());
    return {};
  }

  Result<void> check(const core::LoadRead& read, const core::HashStream& hash) const {
    if (!options_.verify || hash.value() == read.shard->hash) return {};
    return core::fail(Errc::corrupt,
                      "{}: bytes {} to {}, {} of '{}', do not match their hash: the file was altered",
                      path_in(name_, manifest_.files[read.shard->file].name), read.shard->begin,
                      read.shard->end, to_string(read.shard->box), read.tensor->key);
  }

  Result<void> read_whole(const core::LoadRead& read, std::span<std::byte> target) {
    core::HashStream hash;
    for (std::size_t done = 0; done < target.size();) {
      // Hashed while it is still in the cache.
      const auto chunk = std::max<std::size_t>(options_.chunk_bytes, 1);
      auto part = target.subspan(done, std::min(chunk, target.size() - done));
      TRY(fill(read, done, part));
      if (options_.verify) hash.add(part);
      done += part.size();
    }
    return check(read, hash);
  }

  Result<void> read_parts(const core::LoadRead& read, ShardScatter scatter, Upload* upload) {
    const auto window = window_for(read, upload);
    core::HashStream hash;
    for (std::uint64_t done = 0; done < read.shard->bytes();) {
      const auto part = window.first(std::min<std::uint64_t>(window.size(), read.shard->bytes() - done));
      if (options_.verify || scatter.wants_before(done + part.size())) {
        TRY(fill(read, done, part));
        if (options_.verify) hash.add(part);
        TRY(scatter.take(done, part, upload));
        // The window is written to again next.
        if (upload != nullptr) TRY(upload->settle());
      }
      done += part.size();
    }
    return check(read, hash);
  }

  /// Memory for a range of the shard, of whole elements.
  std::span<std::byte> window_for(const core::LoadRead& read, Upload* upload) {
    const auto width = core::size_of(read.tensor->dtype);
    const auto most = upload == nullptr ? options_.chunk_bytes : upload->window().size();
    const auto bytes = std::max<std::size_t>(most / width, 1) * width;
    if (upload != nullptr) return upload->window().first(bytes);
    buffer_.resize(std::min<std::uint64_t>(bytes, read.shard->bytes()));
    return buffer_;
  }

  Storage& storage_;
  std::string_view name_;
  const core::Manifest& manifest_;
  const ReadOptions& options_;
  std::vector<std::byte> buffer_;
};

Result<void> check_header(Storage& storage, std::string_view name, const core::ManifestFile& file) {
  const auto path = path_in(name, file.name);
  const auto size = TRY(storage.size(path));
  if (size != file.bytes)
    return core::fail(Errc::corrupt, "{} has {} bytes, the manifest says {}", path, size, file.bytes);
  const auto header = TRY(storage.read(path, 0, file.header_bytes));
  if (core::hash64(header) != file.header_hash)
    return core::fail(Errc::corrupt, "{}: its header does not match its hash: the file was altered", path);
  return {};
}

Result<void> check_dtypes(const core::LoadRead& read, std::span<const core::LoadTarget> targets) {
  for (const auto& copy : read.copies)
    TRY(core::check_convertible(read.tensor->dtype, targets[copy.target].dtype));
  return {};
}

}  // namespace

Result<void> read_tensors(Storage& storage, std::string_view name, const core::Manifest& manifest,
                          std::span<const core::LoadTarget> targets,
                          std::span<const std::span<std::byte>> memory, const ReadOptions& options) {
  CHECK(targets.size() == memory.size(), "every target has its memory");
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(targets[i].box.elements()) * core::size_of(targets[i].dtype);
    CHECK(memory[i].size() == bytes, "a target's memory has the size of its box");
  }
  const auto plan = TRY(core::plan_load(manifest, targets));
  std::vector<ShardTask> tasks;
  std::set<std::uint32_t> files;
  for (const auto& read : plan.reads) {
    tasks.push_back({read, {}});
    files.insert(read.shard->file);
  }
  for (auto target : plan.zero) TRY(clear(memory[target], options.uploads));
  return read_shards(storage, name, manifest, tasks, {files.begin(), files.end()}, targets, memory, options);
}

Result<void> read_shards(Storage& storage, std::string_view name, const core::Manifest& manifest,
                         std::span<const ShardTask> tasks, const std::vector<std::uint32_t>& files,
                         std::span<const core::LoadTarget> targets,
                         std::span<const std::span<std::byte>> memory, const ReadOptions& options) {
  for (const auto& task : tasks) TRY(check_dtypes(task.read, targets));
  if (options.verify) {
    for (auto file : files) TRY(check_header(storage, name, manifest.files[file]));
  }
  std::vector<Result<void>> results(tasks.size());
  std::atomic<bool> going_on{true};
  run_together(options.threads, tasks.size(), [&](std::size_t i) {
    if (!going_on) return;
    results[i] = ShardReader(storage, name, manifest, options).read(tasks[i], targets, memory);
    if (!results[i]) going_on = false;
  });
  const auto failed =
      std::find_if(results.begin(), results.end(), [](const auto& result) { return !result; });
  return failed == results.end() ? Result<void>{} : *failed;
}

Result<void> verify_checkpoint(Storage& storage, std::string_view name, const core::Manifest& manifest,
                               const ReadOptions& options) {
  std::vector<std::string> damage;
  // What cannot be read today is not known to be damaged.
  Errc code = Errc::io;
  auto note = [&](const Result<void>& result) {
    if (result) return;
    damage.push_back(result.error().message);
    if (result.error().code != Errc::io) code = Errc::corrupt;
  };
  for (const auto& file : manifest.files) note(check_header(storage, name, file));
  ReadOptions thorough = options;
  thorough.verify = true;
  ShardReader reader(storage, name, manifest, thorough);
  for (const auto& tensor : manifest.tensors) {
    for (const auto& shard : tensor.shards) note(reader.verify(tensor, shard));
  }
  if (damage.empty()) return {};
  return core::fail(code, "{}", fmt::join(damage, "\n"));
}

}  // namespace troupe::actors
