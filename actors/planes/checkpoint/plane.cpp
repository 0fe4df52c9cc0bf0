#include "actors/planes/checkpoint/plane.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <utility>

#include "actors/planes/checkpoint/claim.hpp"
#include "actors/planes/checkpoint/directory.hpp"
#include "actors/roles/chunks.hpp"
#include "actors/roles/machine.hpp"
#include "actors/shell/role_host.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/copy_out.hpp"
#include "gpu/host/memory.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

using core::Result;
using messages::Role;

namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kSlack = 2 * kBlock;

}  // namespace

/// A file that is being written.
struct CheckpointPlane::File {
  std::unique_ptr<WritableFile> file;
  std::vector<std::uint64_t> hashes;
};

/// This rank's files of one save. After OpenSave only the I/O worker touches what is not const.
struct CheckpointPlane::Save {
  std::uint64_t sequence = 0;
  std::string directory;
  std::vector<core::PlannedFile> planned;
  std::vector<SaveChunk> chunks;
  std::vector<File> files;
  core::HashStream hash;  ///< of the piece being written; pieces do not interleave
  std::atomic<bool> closed{false};
};

Result<std::unique_ptr<CheckpointPlane>> CheckpointPlane::create(gpu::Device& device, const DataPlane& data,
                                                                 const RankState& state,
                                                                 std::span<const gpu::BufferView> memory,
                                                                 Storage& storage, Options options) {
  std::unique_ptr<CheckpointPlane> plane(
      new CheckpointPlane(device, data, state, memory, storage, std::move(options)));
  for (auto bytes : plane->options_.staging)
    plane->staging_.push_back(TRY(device.allocate_staging(bytes + staging_slack(bytes))));
  plane->stream_ = TRY(device.create_stream({"staging", -1}));
  return plane;
}

CheckpointPlane::CheckpointPlane(gpu::Device& device, const DataPlane& data, const RankState& state,
                                 std::span<const gpu::BufferView> memory, Storage& storage, Options options)
    : device_(device),
      data_(data),
      state_(state),
      memory_(memory),
      storage_(storage),
      options_(std::move(options)) {}

CheckpointPlane::~CheckpointPlane() {
  stream_.reset();
}

void CheckpointPlane::perform(const CheckpointWork& work) {
  std::visit([this](const auto& what) { on(what); }, work);
}

void CheckpointPlane::say(Role role, messages::Message message) {
  const messages::Address self{options_.rank, role, 0};
  options_.post({self, self, options_.epoch, std::move(message)});
}

void CheckpointPlane::prepare_for_saves() {
  if (device_.kind() != gpu::DeviceKind::host || is_prepared_.exchange(true)) return;
  provide_staging(0);
}

/// One buffer in each job, and the jobs of a save in between.
void CheckpointPlane::provide_staging(std::size_t credit) {
  if (credit >= staging_.size()) return;
  options_.run_io([this, credit] {
    gpu::provide_pages(staging_[credit].view());
    provide_staging(credit + 1);
  });
}

/// What a job throws is the business of who asked for it.
void CheckpointPlane::run_io(Role asker, std::function<void()> job) {
  options_.run_io([this, asker, job = std::move(job)] {
    supervise(job, [&](std::string_view what) {
      options_.blame(asker, fmt::format("a job for its files: {}", what));
    });
  });
}

CheckpointPlane::SavePointer CheckpointPlane::find(std::uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto found = saves_.find(sequence);
  return found == saves_.end() ? nullptr : found->second;
}

void CheckpointPlane::on(const OpenSave& work) {
  auto save = std::make_shared<Save>();
  save->sequence = work.sequence;
  save->directory = work.directory;
  save->planned = core::plan_files(state_.structure, work.pieces, options_.rank);
  save->chunks = chunks_of(state_.structure, save->planned, state_.buckets(), options_.chunk_bytes);
  save->files.resize(save->planned.size());
  std::lock_guard lock(mutex_);
  saves_[work.sequence] = std::move(save);
}

void CheckpointPlane::on(const CloseSave& work) {
  auto save = find(work.sequence);
  if (!save) return;
  save->closed = true;
  std::lock_guard lock(mutex_);
  saves_.erase(work.sequence);
}

void CheckpointPlane::on(const StageChunk& work) {
  const auto save = find(work.sequence);
  const auto done = [this, work] {
    say(options_.writer, messages::ChunkStaged{work.sequence, work.chunk, work.credit});
  };
  // In order all the same: who asks in the name of no save learns that nothing is being copied.
  if (!save) return stream_->notify(done);
  const auto& chunk = save->chunks[work.chunk];
  if (auto updated = data_.updated(chunk.bucket)) stream_->wait(updated);
  auto staging = staged_chunk(work.credit, chunk);
  for (const auto& span : chunk.spans) {
    gpu::copy_out(memory_[span.piece].subview(span.offset, span.bytes), staging.subview(0, span.bytes),
                  stream_.get());
    staging = staging.subview(span.bytes, staging.bytes - span.bytes);
  }
  stream_->notify(done);
}

void CheckpointPlane::on(const WriteChunk& work) {
  run_io(options_.writer, [this, work, save = find(work.sequence)] {
    Result<void> result;
    if (save && !save->closed) {
      result = write(*save, work.chunk, staged_chunk(work.credit, save->chunks[work.chunk]));
    }
    say(options_.writer,
        messages::ChunkWritten{work.sequence, work.chunk, work.credit, messages::failure_of(result)});
  });
}

/// Where a chunk is in a staging buffer: memory is aligned to blocks in the same way as the place in the
/// file, so that it goes to the disk without another copy.
gpu::BufferView CheckpointPlane::staged_chunk(std::uint32_t credit, const SaveChunk& chunk) const {
  const auto whole = staging_[credit].view();
  if (whole.bytes < chunk.bytes + kSlack) return whole.subview(0, chunk.bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(whole.data);
  const auto to_block = (kBlock - address % kBlock) % kBlock;
  return whole.subview(to_block + chunk.spans.front().place % kBlock, chunk.bytes);
}

Result<void> CheckpointPlane::write(Save& save, std::uint32_t chunk, gpu::ConstBufferView staged) {
  gpu::declare(device_, "writing of a chunk", {staged}, {});
  const std::span<const std::byte> bytes(staged.data, staged.bytes);
  const auto& spans = save.chunks[chunk].spans;
  std::size_t begin = 0;  // of what is not appended yet, all in one file
  std::size_t end = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const auto& span = spans[i];
    if (span.offset == 0) save.hash.reset();
    save.hash.add(bytes.subspan(end, span.bytes));
    if (span.ends_piece) save.files[span.file].hashes.push_back(save.hash.value());
    end += span.bytes;
    if (i + 1 < spans.size() && spans[i + 1].file == span.file) continue;
    TRY(append(save, span.file, bytes.subspan(begin, end - begin)));
    begin = end;
  }
  return {};
}

Result<void> CheckpointPlane::append(Save& save, std::uint32_t index, std::span<const std::byte> bytes) {
  auto& file = save.files[index];
  if (!file.file) {
    const auto& planned = save.planned[index];
    file.file = TRY(storage_.create(path_in(save.directory, planned.name)));
    TRY(file.file->append(std::as_bytes(std::span(planned.header))));
  }
  return file.file->append(bytes);
}

void CheckpointPlane::on(const FinishFiles& work) {
  run_io(options_.writer, [this, work, save = find(work.sequence)] {
    messages::FilesDurable durable{work.sequence, options_.rank, {}, {}};
    if (save && !save->closed) {
      auto hashes = finish(*save);
      if (hashes) {
        durable.hashes = std::move(*hashes);
      } else {
        durable.failure = messages::failure_of(hashes.error());
      }
    }
    say(options_.writer, std::move(durable));
  });
}

Result<std::vector<std::uint64_t>> CheckpointPlane::finish(Save& save) {
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t index = 0; index < save.files.size(); ++index) {
    auto& file = save.files[index];
    // One of empty pieces has only its header.
    if (!file.file) TRY(append(save, index, {}));
    if (options_.sync) TRY(file.file->sync());
    TRY(file.file->close());
    hashes.insert(hashes.end(), file.hashes.begin(), file.hashes.end());
  }
  save.files.clear();
  return hashes;
}

void CheckpointPlane::on(const MakeSaveDirectory& work) {
  run_io(Role::checkpoint_coordinator, [this, work] {
    if (!cleared_) {
      auto cleared = clear_unfinished(storage_);
      if (!cleared)
        options_.log.warning("what earlier saves left could not be removed: {}", cleared.error().message);
      // A process of an earlier epoch that has been stopped may still hold something.
      cleared_ = cleared.value_or(true);
    }
    const auto made = storage_.make_directory(work.directory);
    if (made) held_.insert_or_assign(work.directory, hold_directory(storage_, work.directory));
    say(Role::checkpoint_coordinator, messages::SaveDirectoryMade{work.sequence, messages::failure_of(made)});
  });
}

void CheckpointPlane::on(const CommitSave& work) {
  run_io(Role::checkpoint_coordinator, [this, work] {
    const auto committed = commit_checkpoint(storage_, work.directory, core::checkpoint_name(work.step),
                                             work.manifest, kMaxManifestBytes, [this] {
                                               return check_claim(storage_, {options_.job, options_.epoch});
                                             });
    say(Role::checkpoint_coordinator,
        messages::SaveCommitDone{work.sequence, messages::failure_of(committed)});
    held_.erase(work.directory);
    if (committed) tidy(work.step);
  });
}

void CheckpointPlane::tidy(core::StepCount committed) {
  if (auto written = write_tracker(storage_, committed); !written)
    options_.log.warning("the tracker file was not written: {}", written.error().message);
  if (auto pruned = prune_checkpoints(storage_, options_.retention, false, committed); !pruned)
    options_.log.warning("old checkpoints were not removed: {}", pruned.error().message);
}

void CheckpointPlane::on(const DiscardSave& work) {
  run_io(Role::checkpoint_coordinator, [this, work] {
    if (auto removed = remove_tree(storage_, work.directory); !removed)
      options_.log.warning("{} of a failed save was not removed: {}", work.directory,
                           removed.error().message);
    held_.erase(work.directory);
  });
}

}  // namespace troupe::actors
