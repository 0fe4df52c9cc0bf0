#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/world/network.hpp"
#include "actors/world/random.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "actors/world/transport/router.hpp"
#include "core/list.hpp"

namespace troupe::actors {

struct SimulatedWiresOptions {
  std::string job = "simulation";
  core::WorldSize world{1};
  std::uint64_t seed = 0;
  TransportLimits limits;
  std::chrono::nanoseconds base_delay = std::chrono::microseconds(40);
  std::chrono::nanoseconds jitter = std::chrono::microseconds(40);  ///< uniform, added to the delay
  double slow_probability = 0.001;                                  ///< of a delay 100 times as long
  std::size_t window_bytes = std::size_t{256} << 10;  ///< in flight in one direction before a writer waits
  std::chrono::nanoseconds connect_deadline = std::chrono::seconds(30);
};

/// The wires between the ranks of a simulated job, and their faults. Each rank runs the production Router and
/// TransportMachine; a wire is a stream, like TCP: it delays and splits bytes, it may stall or break, it
/// never loses or reorders what it carries. Networks must not outlive it; a handler may kill ranks but not
/// open them.
class SimulatedWires {
 public:
  SimulatedWires(EventLoop& loop, SimulatedWiresOptions options);
  ~SimulatedWires();

  /// The network of a rank; it connects to rank 0 by itself. A rank that was killed may be opened again.
  std::unique_ptr<Network> open(core::Rank rank, NetworkHandler handler);

  /// The process dies: its handler is not called any more, the others see the end of the stream.
  void kill(core::Rank rank);
  /// The host dies: the others see only silence.
  void vanish(core::Rank rank);
  /// The process is stopped and continued, as by SIGSTOP and SIGCONT. What it sends meanwhile waits.
  void freeze(core::Rank rank);
  void thaw(core::Rank rank);
  /// The connection between rank 0 and `rank` is reset; what was in flight is lost.
  void cut(core::Rank rank);
  /// Nothing passes from one to the other, one of them being rank 0, until unblock(); then all of it does.
  void block(core::Rank from, core::Rank to);
  void unblock(core::Rank from, core::Rank to);

  /// Total of all wires.
  std::uint64_t bytes_carried() const { return bytes_carried_; }

 private:
  class Handle;
  struct Piece {
    std::vector<std::byte> bytes;  ///< empty: the end of the stream
    std::chrono::nanoseconds arrives{};
  };
  /// One direction of a wire, at its reader.
  struct Pipe {
    std::deque<Piece> pieces;
    std::size_t bytes = 0;
    std::chrono::nanoseconds last_arrival{};
    bool scheduled = false;  ///< the delivery of the first piece is scheduled
    bool ended = false;      ///< the writer sends nothing more
  };
  /// One end of a wire: a connection of a process that may have died since.
  struct End {
    core::Rank rank{};
    std::uint64_t incarnation = 0;
    Router::ConnectionId id = 0;
  };
  struct Wire {
    End hub;
    End rank;
    bool broken = false;
    Pipe to_hub;
    Pipe to_rank;
  };
  struct Host {
    std::unique_ptr<Router> router;  ///< null while the process is not running
    NetworkHandler handler;
    std::uint64_t incarnation = 0;
    bool frozen = false;
    bool pump_scheduled = false;
    std::chrono::nanoseconds armed = std::chrono::nanoseconds::max();
    bool blocked_to_hub = false;
    bool blocked_from_hub = false;
    std::shared_ptr<Wire> wire;  // the newest, of ranks above 0; shared with scheduled deliveries
    std::chrono::nanoseconds give_up{};
  };

  Host& host(core::Rank rank) { return hosts_[rank]; }
  const Host& host(core::Rank rank) const { return hosts_[rank]; }
  void connect(core::Rank rank);
  void pump_soon(core::Rank rank);
  void pump(core::Rank rank);
  void flush(core::Rank rank);
  void flush_hub();
  void arm(core::Rank rank);
  bool is_live(const End& end) const;
  bool is_passable(const Wire& wire, bool to_hub) const;
  void carry(const std::shared_ptr<Wire>& wire, bool to_hub);
  void push(const std::shared_ptr<Wire>& wire, bool to_hub, std::vector<std::byte> bytes);
  void schedule_delivery(const std::shared_ptr<Wire>& wire, bool to_hub);
  void deliver(const std::shared_ptr<Wire>& wire, bool to_hub);
  void wake(core::Rank rank);
  void stop(core::Rank rank, bool others_see_it);
  std::chrono::nanoseconds draw_delay();

  EventLoop& loop_;
  SimulatedWiresOptions options_;
  RandomStream delays_;
  RandomStream cuts_;
  RandomStream nonces_;
  core::List<core::Rank, Host> hosts_;
  std::map<Router::ConnectionId, core::Rank> at_hub_;  ///< by the hub's connections
  std::uint64_t bytes_carried_ = 0;
};

}  // namespace troupe::actors
