#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/roles/replica_work.hpp"
#include "actors/world/log.hpp"
#include "actors/world/storage.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/device.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Carries out what ReplicaKeeper asks for: copies are read and written by an I/O worker and shared over the
/// clique's group on its own stream, "replication". It decides nothing; completions come back as messages.
class ReplicaPlane {
 public:
  struct Options {
    core::Rank rank{};
    core::WorldSize world{};
    core::Epoch epoch{};
    core::Clique clique;
    std::uint64_t chunk_bytes = 0;  ///< of one member in one round
    std::uint32_t credits = 0;
    int keep = 1;       ///< number of saves that are kept, including the newest
    bool sync = false;  ///< copies survive a power failure, not only the end of processes
    std::chrono::nanoseconds deadline = std::chrono::seconds(60);  ///< of a round
    /// Storages of ranks that there may not be any more, which are tidied after the first saves.
    std::vector<Storage*> beside;
    std::function<void(messages::Envelope)> post;       ///< from any thread; must not block
    std::function<void(std::function<void()>)> run_io;  ///< one job after another
    /// A job that this role asked for has thrown.
    std::function<void(messages::Role asker, std::string what)> blame;
    Logger log;  ///< what is not worth a failure
  };

  /// Allocates its buffers, chunk_bytes x members x credits, once. `device` has host memory, and so has the
  /// group's; `structure` is what this rank writes; everything given must outlive the plane.
  static core::Result<std::unique_ptr<ReplicaPlane>> create(gpu::Device& device,
                                                            const core::SaveStructure& structure,
                                                            Storage& storage, Options options);
  /// Drains the replication stream; jobs of the I/O worker must have ended.
  ~ReplicaPlane();
  ReplicaPlane(const ReplicaPlane&) = delete;
  ReplicaPlane& operator=(const ReplicaPlane&) = delete;

  /// Before the first exchange; a clique of one rank does not need it.
  void set_group(std::unique_ptr<gpu::Group> group);

  /// From any thread.
  void perform(const ReplicaWork& work);
  /// Ends the group's operations, even if the group is set later.
  void abort(const core::Error& reason);

 private:
  struct Running;
  // Owned by running_ and by the jobs in flight.
  using RunningPointer = std::shared_ptr<Running>;

  ReplicaPlane(gpu::Device& device, const core::SaveStructure& structure, Storage& storage, Options options);

  void on(const MakeCopyDirectory& work);
  void on(const SealCopy& work);
  void on(const OpenExchange& work);
  void on(const ReadRound& work);
  void on(const ShareRound& work);
  void on(const WriteRound& work);
  void on(const CloseExchange& work);
  void on(const TidyCopies& work);
  void on(const DiscardCopies& work);
  core::Result<std::uint64_t> seal(const SealCopy& work);
  core::Result<void> read(Running& running, std::uint32_t round, gpu::BufferView part);
  core::Result<void> write(Running& running, const WriteRound& work);
  core::Result<void> close(Running& running);
  RunningPointer find(std::uint64_t exchange);
  gpu::Group& group();
  gpu::Operation gather(const Exchange& plan, std::uint32_t round, gpu::BufferView buffer) const;
  /// Where this rank's part of a round is in its buffer.
  gpu::BufferView own_part(const Exchange& plan, std::uint32_t round, std::uint32_t credit);
  void run_io(std::function<void()> job);
  void say(messages::Message message);

  gpu::Device& device_;
  const core::SaveStructure& structure_;
  const std::string layout_;
  Storage& storage_;
  Options options_;
  std::size_t place_ = 0;             ///< of this rank in the clique
  std::vector<gpu::Buffer> buffers_;  ///< per credit
  gpu::Stream stream_;
  bool cleared_ = false;                // touched only by the I/O worker
  int saves_tidied_ = 0;                // as above
  std::mutex mutex_;                    // guards all below
  std::unique_ptr<gpu::Group> group_;   ///< does not change once set
  std::optional<core::Error> aborted_;  ///< the first reason
  std::map<std::uint64_t, RunningPointer> running_;
};

}  // namespace troupe::actors
