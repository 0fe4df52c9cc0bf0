#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "actors/shell/caf_stage.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/network.hpp"
#include "gpu/devices.hpp"

namespace troupe::actors {

struct ProcessWorldOptions {
  /// Where rank, world and addresses come from; by default the process's environment.
  std::function<core::Result<JobEnvironment>()> environment;
  /// As gpu::open_collectives() takes it: "automatic", "shared_memory" (ranks of one host), "gloo" (TCP) or
  /// "nccl" (GPUs).
  std::string collectives = "automatic";
  /// This host as the others reach it, for "gloo", and for what ranks on GPUs of several hosts exchange
  /// beside their collectives. Empty: the loopback interface where all ranks are on one host, else its
  /// address on the way to rank 0.
  std::string gloo_host;
  /// NCCL may move what lies in gradients and parameters without copies of its own, see docs/nccl.md. By all
  /// ranks alike; refused with other collectives.
  bool register_memory = false;
  std::size_t actor_threads = 2;
  /// "host", "cuda:<index>", or "cuda": the GPU of the rank's place on its host, round robin. Ranks that
  /// share one work, slowly (gpu::several_ranks_on_one_gpu()).
  std::string device = "host";
  /// A device and collectives of the caller's own, instead of those that are named above.
  std::function<core::Result<std::unique_ptr<gpu::Device>>(gpu::DeviceFailed)> open_device;
  std::function<core::Result<std::unique_ptr<gpu::CollectiveBackend>>(gpu::Device&, gpu::Rendezvous&)>
      open_collectives;
  /// Where checkpoints are; made when it is not there. Empty: none can be saved.
  std::string checkpoint_directory;
  /// Where this rank's local copies are; made when it is not there. "{rank}" stands for the rank's number;
  /// without it a folder of that name is added. A directory of a tmpfs keeps them in memory beyond the
  /// process. Empty: there is no local tier.
  std::string local_checkpoint_directory;
  /// What the control network and fences report; by default lines on standard error.
  std::function<void(std::string_view line)> log;
};

/// The world of one rank as a real process: CAF actors, TCP to the Coordinator, a device, collectives over
/// shared memory or Gloo. Make it early in main(): it blocks SIGUSR1 for all threads that start after
/// it, and answers it by printing who waits for whom to standard error.
class ProcessWorld final : public RankWorld {
 public:
  /// Errc::invalid_argument when the environment or the options cannot be right.
  static core::Result<std::unique_ptr<ProcessWorld>> create(ProcessWorldOptions options = {});
  ~ProcessWorld() override;

  const JobEnvironment& environment() const;
  /// "host" or "cuda:<index>".
  const std::string& device_name() const;

  /// For a trainer's own actors; both once a session has joined.
  void subscribe(caf::actor subscriber);
  caf::actor_system& actor_system();

  core::Rank rank() const override;
  core::WorldSize world() const override;
  core::Epoch epoch() const override;
  const std::string& job() const override;
  std::uint64_t unique() override;
  gpu::Device& device() override;
  gpu::Device& host_device() override;
  TrainerPatience& patience() override;
  core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous& rendezvous) override;
  core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous& rendezvous) override;
  core::Result<void> open(Hooks hooks) override;
  void spawn(messages::Address address, std::unique_ptr<Machine> machine) override;
  core::Result<void> start() override;
  void post(messages::Envelope envelope) override;
  void close() override;
  Storage* storage() override;
  std::size_t read_threads() const override { return 4; }
  void run_io(std::function<void()> job) override;
  Storage* local_storage() override;
  void run_local_io(std::function<void()> job) override;
  void log(std::string_view line) override;
  std::vector<WaitReport> wait_reports() override;
  std::uint64_t message_count() const override;

 private:
  struct State;
  explicit ProcessWorld(std::unique_ptr<State> state);
  core::Result<void> open_device();
  core::Result<std::string> gloo_host() const;
  void on_network(NetworkEvent event);
  void tell_loss(const RankLost& loss);
  core::Result<void> send(const messages::Envelope& envelope);
  void dump_waits();
  std::unique_ptr<State> state_;
};

}  // namespace troupe::actors
