#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "actors/shell/process_rank.hpp"
#include "actors/shell/rank_places.hpp"
#include "actors/shell/rank_start.hpp"
#include "actors/world/engine.hpp"
#include "actors/world/epochs.hpp"
#include "actors/world/host_identity.hpp"
#include "actors/world/io_worker.hpp"
#include "actors/world/meeting_point.hpp"
#include "actors/world/own_address.hpp"
#include "actors/world/signal_watcher.hpp"
#include "actors/world/storage/holds.hpp"
#include "actors/world/transport/tcp.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

struct ProcessRank::State {
  ProcessWorldOptions options;
  JobEnvironment environment;
  LogOptions log_options;
  std::unique_ptr<Log> log;
  std::unique_ptr<Log> log_before;  ///< of the epoch before, for those that still have a way to it
  EngineFacts facts;
  bool has_own_environment = false;  ///< the caller's, instead of the process's
  JobToken token{};
  std::string device_name;
  // The stage comes before the device, which may fail, and say so on the stage, as long as it exists.
  std::shared_mutex stage_mutex;  // guards stage, and what form_anew() replaces: users share it
  std::unique_ptr<CafStage> stage;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::Device> host_device;  ///< null: `device` itself has host memory
  std::unique_ptr<Keepsake> kept;            ///< of the session before; uses device
  ThreadPatience patience;
  std::shared_ptr<gpu::FlightRecorder> recorder;  ///< shared with groups and the session; null: there is none
  std::unique_ptr<gpu::CollectiveBackend> backend;
  std::unique_ptr<gpu::CollectiveBackend> host_backend;  ///< of host_device, once requested
  Hooks hooks;
  bool is_used = false;                         ///< in this epoch there was a session, or an attempt to join
  std::optional<EpochFiles> files;              ///< the launcher's, if it keeps processes over a failure
  std::atomic<bool> is_member{false};           ///< a step was begun in this epoch
  bool has_come_over = false;                   ///< from another epoch, or from having no rank
  std::optional<EpochWatch> forming;            ///< of the epoch that this rank has come over to
  std::optional<EpochWatch> staying;            ///< of the epoch in which it takes steps, over several nodes
  std::unique_ptr<MeetingPoint> meeting_point;  ///< if torchrun's agent has the port
  std::unique_ptr<TcpNetwork> network;          ///< null in a world of one; set before there are actors
  std::unique_ptr<SignalWatcher> watcher;
  OwnerClaim owner;  ///< of the storage
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Storage> local_storage;
  std::map<core::Rank, std::unique_ptr<Storage>> storages_beside;  ///< those looked at in this epoch
  std::mutex io_mutex;                                             // guards io and local_io
  std::unique_ptr<IoWorker> io;
  std::unique_ptr<IoWorker> local_io;
  std::uint64_t messages_before_close = 0;
  std::set<core::Rank> distrusted;  ///< sent what they must not; only the network's thread accesses it

  bool is_one_host() const { return environment.local_world == environment.world.value; }

  Logger said_by(Subsystem of) const { return {*log, of}; }
  /// For what is below the actors.
  std::function<void(std::string_view)> warnings_of(Subsystem of) const {
    return [logger = said_by(of)](std::string_view line) { logger.say(LogLevel::warning, line); };
  }

  /// A rank trains without a record where there is no room for one.
  void open_record() {
    auto opened = open_flight_record(environment);
    if (!opened) said_by(Subsystem::session).say(LogLevel::warning, opened.error().message);
    recorder = opened ? *std::move(opened) : nullptr;
  }

  RankPlace place() const {
    auto host = host_identity();
    return {host.id, std::move(host.name), environment.local_rank, environment.local_world,
            facts.local_source};
  }

  core::Result<TcpOptions> network_options() {
    TcpOptions chosen;
    chosen.router.job = environment.job + "." + std::to_string(environment.epoch.value);
    chosen.router.self = environment.rank;
    chosen.router.world = environment.world;
    chosen.router.token = token;
    chosen.address = environment.control_host;
    chosen.port = environment.control_port;
    chosen.spans_hosts = !is_one_host();
    chosen.log = said_by(Subsystem::transport);
    if (facts.agent_key.empty()) return chosen;
    meeting_point = std::make_unique<MeetingPoint>(environment, facts.agent_key, chosen.log);
    chosen.find = [this](std::chrono::nanoseconds limit) { return meeting_point->find(limit); };
    if (environment.rank.value != 0) return chosen;
    chosen.address = TRY(meeting_point->host_to_listen_at());
    chosen.port = 0;
    chosen.announce = [this](std::uint16_t port) { return meeting_point->announce(port); };
    chosen.all_have_come = [this] { meeting_point->close(); };
    return chosen;
  }
};

}  // namespace troupe::actors
