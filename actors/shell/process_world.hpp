#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "actors/world/environment.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::gpu {
class CollectiveBackend;
class Device;
class Rendezvous;
}  // namespace troupe::gpu

namespace troupe::actors {

class CafStage;
class ProcessRank;
class RankWorld;

struct ProcessWorldOptions {
  /// Called once, from any thread, when a device is lost.
  using DeviceFailed = std::function<void(const core::Error&)>;

  /// Where rank, world and addresses come from; by default the process's environment.
  std::function<core::Result<JobEnvironment>()> environment;
  /// What gpu::open_collectives() takes: "automatic", "shared_memory" (ranks of one host), "tcp" or
  /// "nccl" (GPUs).
  std::string collectives = "automatic";
  /// This host's address as other hosts reach it, for "tcp" and for what ranks on GPUs of several hosts
  /// exchange besides their collectives. Empty: the loopback interface if all ranks are on one host,
  /// otherwise the address that this host uses to reach rank 0.
  std::string tcp_host;
  /// NCCL may move gradients and parameters without copies of its own, see docs/nccl.md. The same on all
  /// ranks; refused with other collectives.
  bool register_memory = false;
  std::size_t actor_threads = 2;
  /// "host", "cuda:<index>", or "cuda": the GPU at the rank's place on its host, round robin. Ranks may share
  /// a GPU, which is slow (gpu::several_ranks_on_one_gpu()).
  std::string device = "host";
  /// The caller's own device and collectives, instead of those named above.
  std::function<core::Result<std::unique_ptr<gpu::Device>>(DeviceFailed)> open_device;
  std::function<core::Result<std::unique_ptr<gpu::CollectiveBackend>>(gpu::Device&, gpu::Rendezvous&)>
      open_collectives;
  /// Where checkpoints are; created if it does not exist. Empty: none can be saved.
  std::string checkpoint_directory;
  /// Where this rank's local copies are; created if it does not exist. "{rank}" stands for the rank's number;
  /// without it a folder with that name is added. In a tmpfs the copies stay in memory after the process
  /// ends. Empty: there is no local tier.
  std::string local_checkpoint_directory;
  /// Receives what the runtime says to people, a sentence per call, from any thread, as far as TROUPE_LOG
  /// asks for it; by default lines with time, level and place go to standard error (docs/logging.md).
  std::function<void(std::string_view sentence)> log;
  /// This process stays when another rank is lost, and the trainer then calls ProcessWorld::form_anew():
  /// under `troupe launch`. Elsewhere the launcher starts all processes anew.
  bool stays = false;
  /// Says which place this process has in the epoch after this one, and waits until it is known; by default
  /// `troupe launch` is asked. An Error if there is none.
  std::function<core::Result<JobEnvironment>(const JobEnvironment& over)> next_environment;
};

/// This process as one rank of a job: CAF actors, TCP to the Coordinator, a device, and collectives over
/// shared memory, TCP or NCCL. Create it early in main(): it blocks SIGUSR1 for all threads that start
/// later, and answers it by printing who waits for whom to standard error. For one session, which it must
/// outlive, and another one after each form_anew().
class ProcessWorld {
 public:
  /// Errc::invalid_argument when the environment or the options are not usable.
  static core::Result<std::unique_ptr<ProcessWorld>> create(ProcessWorldOptions options = {});
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  core::Rank rank() const;
  core::WorldSize world_size() const;
  const JobEnvironment& environment() const;
  /// "host" or "cuda:<index>".
  const std::string& device_name() const;

  /// After the session has failed with `why`, and was destroyed: whether the job goes on in a new epoch with
  /// this process. Then join again and begin as a process that was started again does: write first values,
  /// restore(), and take the next step; all memory of the session before is gone, and rank() and world_size()
  /// may have changed. Returns `why` where it says nothing about another rank, or the launcher starts all
  /// processes anew, or the device's failure. Blocks for up to ten seconds, over several nodes for up to
  /// twenty, on GPUs for up to fifty.
  core::Result<void> form_anew(const core::Error& why);

  /// What Session::join() takes.
  operator RankWorld&();  // NOLINT: a process world is a rank's world
  /// The actors of this rank, for actors/shell/subscribers.hpp; null unless a session is open.
  CafStage* stage();

 private:
  explicit ProcessWorld(std::unique_ptr<ProcessRank> rank);
  std::unique_ptr<ProcessRank> rank_;
};

}  // namespace troupe::actors
