#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/shell/rank_world.hpp"
#include "actors/simulation/mailboxes.hpp"
#include "actors/world/network.hpp"
#include "actors/world/random.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/order/checked_device.hpp"
#include "gpu/order/host_line.hpp"
#include "gpu/simulated/simulated_device.hpp"
#include "posix/fiber.hpp"

namespace troupe::actors {

class InvariantMonitor;

/// What the ranks of one simulation share.
struct SimulatedSurroundings {
  EventLoop& loop;
  gpu::SimulatedFabric& fabric;
  InvariantMonitor& monitor;
  std::uint64_t seed = 0;
  Storage* storage = nullptr;                     ///< shared by all ranks; null: no checkpoints
  std::shared_ptr<Mailboxes> mailboxes;           ///< shared by all ranks
  std::shared_ptr<core::KnownPrograms> programs;  ///< shared by all ranks
  /// One per rank; empty: no local copies.
  std::vector<Storage*> local_storages = {};
  /// A job of the I/O worker takes up to this long.
  std::chrono::nanoseconds io_delay = std::chrono::microseconds(200);
  /// Instead, for the local disks of these ranks.
  std::map<int, std::chrono::nanoseconds> local_io_delays = {};
  /// An actor takes up to this long before it handles its next message: different seeds, different
  /// interleavings.
  std::chrono::nanoseconds mailbox_delay = std::chrono::microseconds(3);
  /// Called when a role has entered another state; may be empty.
  std::function<void(const messages::Address& role, std::string_view state)> entered = nullptr;
  /// Called when nothing else can end a rank's part in the job.
  std::function<void(core::Rank)> end_process = nullptr;
  core::Epoch epoch{1};
  bool goes_on = false;  ///< processes may go on to another epoch
  /// Asked on rank 0 after each step; may be empty.
  std::function<bool()> others_stand_by = nullptr;
};

/// What a process of the simulation keeps over epochs. The loop outlives it.
struct SimulatedProcess {
  SimulatedProcess(EventLoop& loop, gpu::SimulatedDeviceOptions options, bool checks_order);
  SimulatedProcess(const SimulatedProcess&) = delete;
  SimulatedProcess& operator=(const SimulatedProcess&) = delete;

  gpu::SimulatedDevice device;
  std::unique_ptr<gpu::Device> checked;  ///< the same, with its order checked; null: it is not
  std::function<void(const std::string& what)> touched_out_of_order;
  gpu::HostLine trainer_line;
  std::unique_ptr<Keepsake> kept;
};

/// One rank's world in the simulator, for one epoch: its roles, and a fiber for its trainer. Only bytes pass
/// between ranks. The process outlives it.
class SimulatedRank final : public RankWorld, private TrainerPatience, private RoleWitness {
 public:
  /// The surroundings outlive it, too.
  SimulatedRank(const SimulatedSurroundings& surroundings, core::Rank rank, core::WorldSize world,
                SimulatedProcess& process);
  ~SimulatedRank() override;

  /// What opens the network when the session starts; call it before the trainer runs.
  void connect_with(std::function<std::unique_ptr<Network>()> open) { open_network_ = std::move(open); }
  void on_network(NetworkEvent event);

  /// Runs `body` as this rank's trainer.
  void run_trainer(std::function<core::Result<void>(SimulatedRank&)> body);
  /// Lets virtual time pass in the fiber, as if the trainer computed for this long.
  void compute(std::chrono::nanoseconds duration);
  /// The process dies immediately: none of its messages and collectives continues; its trainer is unwound.
  void kill();

  bool has_ended() const { return !fiber_ || fiber_->has_ended(); }
  bool is_dead() const { return dead_; }
  const core::Result<void>& result() const { return result_; }
  gpu::SimulatedDevice& simulated_device() { return process_.device; }
  InvariantMonitor& monitor() { return surroundings_.monitor; }

  core::Rank rank() const override { return rank_; }
  core::WorldSize world_size() const override { return world_; }
  core::Epoch epoch() const override { return surroundings_.epoch; }
  const std::string& job() const override { return job_; }
  std::uint64_t unique() override;
  gpu::Device& device() override { return process_.checked ? *process_.checked : process_.device; }
  TrainerPatience& patience() override { return *this; }
  core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous& rendezvous) override;
  core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous&) override {
    return collectives_.get();
  }
  bool is_used() const override { return opened_ || closed_; }
  core::Result<void> open(Hooks hooks) override;
  void spawn(messages::Address address, std::unique_ptr<Machine> machine) override;
  core::Result<void> start() override;
  void post(messages::Envelope envelope) override;
  void blame(const messages::Address& role, std::string what) override;
  void close() override;
  bool has_others_standing_by() override {
    return surroundings_.others_stand_by && surroundings_.others_stand_by();
  }
  bool may_go_on() const override { return surroundings_.goes_on && !dead_; }
  void keep(std::unique_ptr<Keepsake> kept) override { process_.kept = std::move(kept); }
  Keepsake* kept() override { return process_.kept.get(); }
  Storage* storage() override { return surroundings_.storage; }
  void run_io(std::function<void()> job) override { run_io(io_, std::move(job)); }
  Storage* local_storage() override;
  std::map<core::Rank, Storage*> local_storages_beside() override;
  void run_local_io(std::function<void()> job) override { run_io(local_io_, std::move(job)); }
  Logger log(Subsystem of) const override { return {*log_, of}; }
  /// What was said to people, in order.
  const std::vector<std::string>& logged() const { return said_; }
  std::shared_ptr<core::KnownPrograms> programs() override { return surroundings_.programs; }
  RoleWitness* witness() override { return this; }
  std::vector<WaitReport> wait_reports() override;
  std::uint64_t message_count() const override { return messages_; }

 private:
  struct Part;

  bool wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
            std::chrono::nanoseconds deadline) override;
  void wake() override;
  void heard(const messages::Envelope& envelope) override;
  void asked(const messages::Address& who, const Work& work) override;
  void is_in(const messages::Address& who, std::string_view state) override;
  void resume_soon();
  void rest();
  bool wait_for_device(const std::function<bool()>& ready, std::chrono::nanoseconds deadline);
  void deliver(messages::Envelope envelope);
  void run_one_message(Part& part);
  template <class Call>
  void run(Part& part, const Call& call);
  void note_state(Part& part);
  Part* find(const messages::Address& role) const;
  struct IoQueue {
    std::chrono::nanoseconds delay{};
    struct Job {
      std::function<void()> run;
      gpu::Past past;
    };
    std::deque<Job> jobs = {};
    gpu::HostLine line = {};
    bool scheduled = false;
  };
  void run_io(IoQueue& queue, std::function<void()> job);
  void schedule_io(IoQueue& queue);

  // First what each event needs, in as few cache lines as possible: other ranks had the cache meanwhile.
  const SimulatedSurroundings& surroundings_;
  core::Rank rank_;
  core::WorldSize world_;
  bool is_on_fiber_ = false;
  bool waiting_ = false;
  bool resume_scheduled_ = false;
  bool dead_ = false;
  bool opened_ = false;
  bool closed_ = false;
  std::uint64_t messages_ = 0;
  /// The parts by role and index: each message asks.
  std::vector<std::vector<Part*>> places_;
  RandomStream delays_;
  std::unique_ptr<posix::Fiber> fiber_;
  std::unique_ptr<Network> network_;
  SimulatedProcess& process_;
  Hooks hooks_;
  std::string job_ = "simulation";
  std::unique_ptr<gpu::CollectiveBackend> collectives_;
  std::function<std::unique_ptr<Network>()> open_network_;
  IoQueue io_;
  IoQueue local_io_;
  std::vector<std::string> said_;
  std::unique_ptr<Log> log_;
  std::map<messages::Address, std::unique_ptr<Part>> parts_;
  std::map<messages::Address, std::string_view> states_;  ///< of roles that run on the trainer's thread
  core::Result<void> result_;
  std::uint64_t unique_numbers_ = 0;
};

}  // namespace troupe::actors
