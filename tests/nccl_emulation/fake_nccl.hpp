#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/collective/nccl/library.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

struct FakeNcclWorld;
struct FakeNcclProcess;

/// How a task gets on a stream of the test's device: as StreamQueue::enqueue_async().
using RunOnStream = std::function<void(NativeStream, std::function<void(Completion)>)>;

/// The memory of the test's device, not zeroed.
struct FakeNcclMemory {
  std::function<void*(std::size_t bytes)> take;  ///< null when there is none
  std::function<void(void*)> give_back;

  static FakeNcclMemory of_host();
};

struct FakeNcclOptions {
  /// How often a launch or a finished set-up still says ncclInProgress.
  int polls_in_progress = 2;
  /// Whether the survivors' communicators report ncclRemoteError when a peer dies or aborts, as over sockets,
  /// or nothing, as over NVLink.
  bool tells_peers = false;
  /// Whether kernels of different communicators of one device may pass each other, as they can while the
  /// device has room for all.
  bool has_room_for_all = false;
};

/// What a process gave to ncclCommInitRankConfig.
struct FakeNcclSeen {
  int blocking = 0;
  int min_ctas = 0;
  int max_ctas = 0;
  int split_share = 0;
  std::string name;
};

/// NCCL for tests: its semantics as the documentation has them, between ranks that are threads of one
/// process, on streams of any device. Calls are non-blocking only. A launch is on its streams when the
/// communicator no longer says ncclInProgress, and not before; kernels of one device run one after another,
/// in the order of launches, as on a full device; sums are rounded at every hop of a ring that begins
/// elsewhere for each chunk. Misuse that would crash or corrupt silently is written down in violations().
class FakeNccl {
 public:
  /// The library as one rank's process has it.
  class Process {
   public:
    explicit Process(std::shared_ptr<FakeNcclProcess> state) : state_(std::move(state)) {}

    NcclApi api(int version = 22809, std::set<std::string> newer = {}) const;

    /// The next call that launches returns this.
    void fail_next_call(NcclStatus status);
    /// All its communicators report this from now on.
    void report(NcclStatus status);
    /// From now on ncclMemAlloc returns this.
    void refuse_memory(NcclStatus status);
    /// From now on ncclCommRegister returns this; success: without a handle, as with NCCL_LOCAL_REGISTER=0.
    void refuse_registrations(NcclStatus status);
    /// Launches stay in progress: a peer does not connect.
    void never_connect();
    /// From now on ncclCommDestroy returns this, and the communicator is gone all the same.
    void spoil_destroys(NcclStatus status);
    /// Its communicators and what runs on them are gone, as when the process is killed.
    void die();
    /// ncclCommAbort does not return until release_aborts().
    void block_aborts();
    void release_aborts();
    FakeNcclSeen last_configuration() const;
    /// For what its communicators have connected, in order, each for the first time: "dp: ncclSend to 2", or
    /// "dp: ncclAllGather of size 3", whose size class stands for the algorithm that NCCL chooses.
    std::vector<std::string> connections() const;

   private:
    std::shared_ptr<FakeNcclProcess> state_;
  };

  explicit FakeNccl(FakeNcclOptions options = {});
  /// Lets blocked aborts go on.
  ~FakeNccl();

  Process start_process(RunOnStream run_on_stream, FakeNcclMemory memory = FakeNcclMemory::of_host());
  std::size_t live_communicators() const;
  /// Ranges from ncclMemAlloc.
  std::size_t live_ranges() const;
  /// Registrations of communicators that live.
  std::size_t live_registrations() const;
  /// Collectives and messages of which all memory was registered.
  std::size_t registered_operations() const;
  std::vector<std::string> violations() const;

 private:
  // Shared with the processes and their tables, which a thread that is left behind may keep.
  std::shared_ptr<FakeNcclWorld> world_;
};

}  // namespace troupe::gpu
