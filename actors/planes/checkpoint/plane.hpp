#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/step/data_plane.hpp"
#include "actors/planes/step/state.hpp"
#include "actors/roles/checkpoint_work.hpp"
#include "actors/roles/chunks.hpp"
#include "actors/world/log.hpp"
#include "actors/world/storage.hpp"
#include "actors/world/storage/holds.hpp"
#include "core/ids.hpp"
#include "gpu/device.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Carries out what CheckpointWriter and CheckpointCoordinator ask for: copies into staging buffers on its
/// own stream ("staging"), writes on an I/O worker. It decides nothing; completions come back as messages.
class CheckpointPlane {
 public:
  struct Options {
    core::Rank rank{};
    core::Epoch epoch{};
    std::string job;
    std::uint64_t chunk_bytes = 0;
    std::vector<std::uint64_t> staging;                         ///< as from staging_buffers()
    messages::Role writer = messages::Role::checkpoint_writer;  ///< the role that asks and is answered
    bool sync = true;  ///< files survive a power failure, not only the end of the process
    core::Retention retention;
    std::function<void(messages::Envelope)> post;       ///< from any thread; must not block
    std::function<void(std::function<void()>)> run_io;  ///< one job after another
    /// Called when a job that this role asked for has thrown.
    std::function<void(messages::Role asker, std::string what)> blame;
    Logger log;  ///< what is not worth a failure
  };

  /// Allocates the staging buffers, once. Everything given must outlive it; `memory` is where the pieces of
  /// `state` are.
  static core::Result<std::unique_ptr<CheckpointPlane>> create(gpu::Device& device, const DataPlane& data,
                                                               const RankState& state,
                                                               std::span<const gpu::BufferView> memory,
                                                               Storage& storage, Options options);
  /// Drains the staging stream; jobs of the I/O worker must have ended.
  ~CheckpointPlane();
  CheckpointPlane(const CheckpointPlane&) = delete;
  CheckpointPlane& operator=(const CheckpointPlane&) = delete;

  /// From any thread.
  void perform(const CheckpointWork& work);
  /// Has the I/O worker bring the pages of staging memory, so that the first save does not wait for them.
  /// Only the first call counts. A job that loads needs its processors for that and calls this afterwards.
  void prepare_for_saves();

  std::uint64_t chunk_bytes() const { return options_.chunk_bytes; }
  const std::vector<std::uint64_t>& staging() const { return options_.staging; }

 private:
  struct File;
  struct Save;
  // Owned by saves_ and by the jobs in flight.
  using SavePointer = std::shared_ptr<Save>;

  CheckpointPlane(gpu::Device& device, const DataPlane& data, const RankState& state,
                  std::span<const gpu::BufferView> memory, Storage& storage, Options options);

  void on(const OpenSave& work);
  void on(const StageChunk& work);
  void on(const WriteChunk& work);
  void on(const FinishFiles& work);
  void on(const CloseSave& work);
  void on(const MakeSaveDirectory& work);
  void on(const CommitSave& work);
  void on(const DiscardSave& work);
  void provide_staging(std::size_t credit);
  gpu::BufferView staged_chunk(std::uint32_t credit, const SaveChunk& chunk) const;
  core::Result<void> append(Save& save, std::uint32_t file, std::span<const std::byte> bytes);
  core::Result<void> write(Save& save, std::uint32_t chunk, gpu::ConstBufferView staged);
  core::Result<std::vector<std::uint64_t>> finish(Save& save);
  void tidy(core::StepCount committed);
  void run_io(messages::Role asker, std::function<void()> job);
  SavePointer find(std::uint64_t sequence);
  void say(messages::Role role, messages::Message message);

  gpu::Device& device_;
  const DataPlane& data_;
  const RankState& state_;
  std::span<const gpu::BufferView> memory_;
  Storage& storage_;
  Options options_;
  std::vector<gpu::Buffer> staging_;  ///< per credit
  gpu::Stream stream_;
  std::mutex mutex_;  // guards saves_
  std::map<std::uint64_t, SavePointer> saves_;
  std::atomic<bool> is_prepared_{false};
  bool cleared_ = false;              ///< accessed only on the I/O worker, as is the next
  std::map<std::string, Hold> held_;  ///< directories of saves in progress
};

}  // namespace troupe::actors
