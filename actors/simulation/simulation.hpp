#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulation/invariants.hpp"
#include "actors/simulation/simulated_rank.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "actors/world/simulation/network.hpp"
#include "gpu/collective/simulated/fabric.hpp"
#include "gpu/simulated/simulated_device.hpp"

namespace troupe::actors {

/// Something that goes wrong at some moment.
struct SimulatedFault {
  enum class Kind : std::uint8_t {
    kill,  ///< the process of `rank` dies
    hang,  ///< its collectives never arrive, its control plane stays alive
    slow,  ///< its device takes `factor` times as long
  };
  Kind kind = Kind::kill;
  core::Rank rank{};
  std::chrono::nanoseconds at{};
  double factor = 1;
  /// Instead of a time: as soon as this role of the rank has entered `state`.
  std::optional<messages::Role> role;
  std::string state;
};

struct SimulationOptions {
  core::WorldSize ranks{1};
  std::uint64_t seed = 0;
  gpu::SimulatedDeviceOptions device;
  gpu::FabricOptions fabric;
  std::vector<SimulatedFault> faults;
  bool checks_order = true;              ///< of what touches device memory (ST-1)
  Storage* storage = nullptr;            ///< for the checkpoints of all ranks; must outlive the simulation
  std::vector<Storage*> local_storages;  ///< for each rank's local copies; must outlive the simulation
  std::chrono::nanoseconds io_delay = std::chrono::microseconds(200);  ///< see SimulatedSurroundings
  std::map<int, std::chrono::nanoseconds> local_io_delays;             ///< as above
  std::chrono::nanoseconds time_limit = std::chrono::hours(1);
  std::uint64_t event_limit = 1'000'000'000;
  core::Epoch epoch{1};
  bool goes_on = false;                        ///< see SimulatedSurroundings
  std::function<bool()> others_stand_by = {};  ///< as above
};

struct SimulationReport {
  std::uint64_t trace_hash = 0;  ///< equal in two runs of one seed
  std::chrono::nanoseconds virtual_time{};
  std::int64_t steps_committed = 0;
  std::uint64_t events = 0;
  std::uint64_t messages = 0;
  std::vector<std::string> violations;
  std::vector<core::Result<void>> results;           ///< of each rank's trainer
  std::vector<messages::SaveOver> saves;             ///< as the first trainer was told
  std::vector<messages::LocalSaveOver> local_saves;  ///< as the first trainer was told
};

/// A whole job in one thread and virtual time: the production machines, codec and transport, with a device
/// and a network driven by a seed. Invariants are checked after every event; a rank that waits for something
/// that will never come is a violation (LV-1), reported with the dump of who waits for whom.
class Simulation {
 public:
  using Trainer = std::function<core::Result<void>(SimulatedRank& rank)>;

  explicit Simulation(SimulationOptions options);
  /// An epoch of a longer job, whose loop and processes, one per rank, outlive it.
  Simulation(SimulationOptions options, EventLoop& loop, const std::vector<SimulatedProcess*>& processes);
  ~Simulation();

  /// Runs `trainer` as the trainer of every rank, until all have ended. Call it once.
  SimulationReport run(const Trainer& trainer);

  void inject(const SimulatedFault& fault);

  SimulatedRank& rank(core::Rank rank) { return *ranks_[static_cast<std::size_t>(rank.value)]; }
  EventLoop& loop() { return loop_; }
  InvariantMonitor& monitor() { return monitor_; }

 private:
  SimulatedSurroundings surroundings();
  void add_ranks(const std::vector<SimulatedProcess*>& processes);
  void connect();
  void on_state(const messages::Address& role, std::string_view state);
  void report_stuck(EventLoop::Stop stop);

  SimulationOptions options_;
  std::unique_ptr<EventLoop> own_loop_;  ///< null in a longer job
  EventLoop& loop_;
  gpu::SimulatedFabric fabric_;
  SimulatedWires wires_;
  InvariantMonitor monitor_;
  const SimulatedSurroundings surroundings_;
  std::vector<std::unique_ptr<SimulatedProcess>> own_processes_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
};

}  // namespace troupe::actors
