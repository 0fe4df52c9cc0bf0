#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "actors/shell/caf_stage.hpp"
#include "actors/shell/process_world.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/network.hpp"
#include "gpu/devices.hpp"

namespace troupe::actors {

/// The world of one rank as a real process: CAF actors, TCP to the Coordinator, a device, collectives over
/// shared memory or TCP. ProcessWorld owns it.
class ProcessRank final : public RankWorld {
 public:
  /// Errc::invalid_argument if the environment or the options are not usable.
  static core::Result<std::unique_ptr<ProcessRank>> create(ProcessWorldOptions options = {});
  ~ProcessRank() override;

  const JobEnvironment& environment() const;
  /// "host" or "cuda:<index>".
  const std::string& device_name() const;

  /// Like ProcessWorld::form_anew().
  core::Result<void> form_anew(const core::Error& why);

  /// The actors of this rank; null unless a session has joined and is open.
  CafStage* stage();

  core::Rank rank() const override;
  core::WorldSize world_size() const override;
  core::Epoch epoch() const override;
  const std::string& job() const override;
  std::uint64_t unique() override;
  gpu::Device& device() override;
  gpu::Device& host_device() override;
  TrainerPatience& patience() override;
  core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous& rendezvous) override;
  core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous& rendezvous) override;
  bool is_used() const override;
  core::Result<void> open(Hooks hooks) override;
  void spawn(messages::Address address, std::unique_ptr<Machine> machine) override;
  core::Result<void> start() override;
  void post(messages::Envelope envelope) override;
  void post_and_run(messages::Envelope envelope) override;
  void blame(const messages::Address& role, std::string what) override;
  void close() override;
  bool has_others_standing_by() override;
  bool may_go_on() const override;
  void keep(std::unique_ptr<Keepsake> kept) override;
  Keepsake* kept() override;
  Storage* storage() override;
  std::size_t read_threads() const override { return 4; }
  void run_io(std::function<void()> job) override;
  Storage* local_storage() override;
  std::map<core::Rank, Storage*> local_storages_beside() override;
  void run_local_io(std::function<void()> job) override;
  std::shared_ptr<gpu::FlightRecorder> recorder() override;
  Logger log(Subsystem of) const override;
  std::vector<WaitReport> wait_reports() override;
  std::uint64_t message_count() const override;

 private:
  struct State;
  explicit ProcessRank(std::unique_ptr<State> state);
  core::Result<void> take_place();
  core::Result<void> open_devices(const Logger& log);
  core::Result<void> settle_device();
  void open_io();
  core::Result<void> open_local_storage();
  void declare(Membership::State state);
  void watch_forming();
  void leave_epoch(const std::string& why);
  void hear_own(const messages::Envelope& envelope);
  gpu::DeviceFailed on_device_failure();
  core::Result<std::string> tcp_host() const;
  void on_network(NetworkEvent event);
  void hear(NetworkEvent event);
  void tell_loss(const RankLost& loss);
  core::Result<void> send(const messages::Envelope& envelope);
  void dump_waits();
  std::unique_ptr<State> state_;
};

}  // namespace troupe::actors
