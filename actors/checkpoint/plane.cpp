#include "actors/checkpoint/plane.hpp"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "actors/checkpoint/chunks.hpp"
#include "actors/kit/machine.hpp"
#include "core/hash.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

using core::Result;
using messages::Role;

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
  core::HashStream hash;  ///< of the piece that is being written; pieces do not mix
  std::atomic<bool> closed{false};
};

Result<std::unique_ptr<CheckpointPlane>> CheckpointPlane::create(gpu::Device& device, const DataPlane& data,
                                                                 const RankState& state, Storage& storage,
                                                                 Options options) {
  std::unique_ptr<CheckpointPlane> plane(
      new CheckpointPlane(device, data, state, storage, std::move(options)));
  for (std::uint32_t credit = 0; credit < plane->options_.credits; ++credit) {
    plane->staging_.push_back(TRY(device.allocate(plane->options_.chunk_bytes)));
  }
  plane->stream_ = TRY(device.create_stream({"staging", -1}));
  return plane;
}

CheckpointPlane::CheckpointPlane(gpu::Device&, const DataPlane& data, const RankState& state,
                                 Storage& storage, Options options)
    : data_(data), state_(state), storage_(storage), options_(std::move(options)) {}

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
    say(Role::checkpoint_writer, messages::ChunkStaged{work.sequence, work.chunk, work.credit});
  };
  if (!save) return done();
  const auto& chunk = save->chunks[work.chunk];
  stream_->wait(data_.updated(chunk.bucket));
  std::size_t staged = 0;
  for (const auto& span : chunk.spans) {
    const auto& piece = state_.pieces[span.piece];
    const auto dtype = state_.structure.tensors[state_.structure.pieces[span.piece].tensor].dtype;
    const auto first = static_cast<std::size_t>(piece.first) * core::size_of(dtype) + span.offset;
    gpu::copy(data_.state(piece.kind, piece.bucket).subview(first, span.bytes),
              staging_[work.credit].view().subview(staged, span.bytes), stream_.get());
    staged += span.bytes;
  }
  stream_->notify(done);
}

void CheckpointPlane::on(const WriteChunk& work) {
  options_.run_io([this, work, save = find(work.sequence)] {
    Result<void> result;
    if (save && !save->closed) {
      const auto bytes = staging_[work.credit].view().subview(0, save->chunks[work.chunk].bytes);
      result = write(*save, work.chunk, bytes);
    }
    say(Role::checkpoint_writer,
        messages::ChunkWritten{work.sequence, work.chunk, work.credit, messages::failure_of(result)});
  });
}

Result<void> CheckpointPlane::write(Save& save, std::uint32_t chunk, gpu::ConstBufferView staged) {
  std::span<const std::byte> rest(staged.data, staged.bytes);
  for (const auto& span : save.chunks[chunk].spans) {
    const auto& planned = save.planned[span.file];
    auto& file = save.files[span.file];
    if (!file.file) {
      file.file = TRY(storage_.create(path_in(save.directory, planned.name)));
      TRY(file.file->append(std::as_bytes(std::span(planned.header))));
    }
    const auto bytes = rest.first(span.bytes);
    rest = rest.subspan(span.bytes);
    if (span.offset == 0) save.hash.reset();
    save.hash.add(bytes);
    if (span.ends_piece) file.hashes.push_back(save.hash.value());
    TRY(file.file->append(bytes));
  }
  return {};
}

void CheckpointPlane::on(const FinishFiles& work) {
  options_.run_io([this, work, save = find(work.sequence)] {
    messages::FilesDurable durable{work.sequence, options_.rank, {}, {}};
    if (save && !save->closed) {
      auto hashes = finish(*save);
      if (hashes) {
        durable.hashes = std::move(*hashes);
      } else {
        durable.failure = messages::failure_of(hashes.error());
      }
    }
    say(Role::checkpoint_writer, std::move(durable));
  });
}

Result<std::vector<std::uint64_t>> CheckpointPlane::finish(Save& save) {
  std::vector<std::uint64_t> hashes;
  for (auto& file : save.files) {
    TRY(file.file->sync());
    TRY(file.file->close());
    hashes.insert(hashes.end(), file.hashes.begin(), file.hashes.end());
  }
  save.files.clear();
  return hashes;
}

void CheckpointPlane::on(const MakeSaveDirectory& work) {
  options_.run_io([this, work] {
    if (!std::exchange(cleared_, true)) {
      auto cleared = clear_unfinished(storage_);
      if (!cleared) options_.log("what earlier saves left could not be removed: " + cleared.error().message);
    }
    const auto made = storage_.make_directory(work.directory);
    say(Role::checkpoint_coordinator, messages::SaveDirectoryMade{work.sequence, messages::failure_of(made)});
  });
}

void CheckpointPlane::on(const CommitSave& work) {
  options_.run_io([this, work] {
    const auto committed =
        commit_checkpoint(storage_, work.directory, core::checkpoint_name(work.step), work.manifest);
    say(Role::checkpoint_coordinator,
        messages::SaveCommitDone{work.sequence, messages::failure_of(committed)});
    if (committed) tidy(work.step);
  });
}

void CheckpointPlane::tidy(core::Step committed) {
  if (auto written = write_tracker(storage_, committed); !written)
    options_.log("the tracker file was not written: " + written.error().message);
  if (auto pruned = prune_checkpoints(storage_, options_.retention); !pruned)
    options_.log("old checkpoints were not removed: " + pruned.error().message);
}

void CheckpointPlane::on(const DiscardSave& work) {
  options_.run_io([this, work] {
    if (auto removed = remove_tree(storage_, work.directory); !removed)
      options_.log(
          fmt::format("{} of a failed save was not removed: {}", work.directory, removed.error().message));
  });
}

}  // namespace troupe::actors
