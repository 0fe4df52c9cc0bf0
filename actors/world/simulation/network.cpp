#include "actors/world/simulation/network.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {
namespace {

constexpr core::Rank kHub = Router::kHub;
constexpr auto kRetry = std::chrono::milliseconds(10);

}  // namespace

/// A rank's handle to the simulated network.
class SimulatedWires::Handle final : public Network {
 public:
  Handle(SimulatedWires& wires, core::Rank rank)
      : wires_(wires), rank_(rank), incarnation_(wires.host(rank).incarnation) {}
  ~Handle() override {
    if (is_alive()) wires_.kill(rank_);
  }

  core::Rank rank() const override { return rank_; }
  core::WorldSize world_size() const override { return wires_.options_.world; }
  core::Result<void> send(core::Rank to, std::span<const std::byte> message) override {
    // A dead rank may keep sending until the simulator has removed it.
    if (!is_alive()) return core::fail(core::Errc::aborted, "rank {} is dead", rank_.value);
    TRY(wires_.host(rank_).router->send(to, message, wires_.loop_.now()));
    wires_.pump_soon(rank_);
    return {};
  }
  core::Result<void> close() override {
    if (!is_alive()) return {};
    wires_.host(rank_).router->leave(wires_.loop_.now());
    wires_.flush(rank_);
    return {};
  }

 private:
  bool is_alive() const {
    const Host& host = wires_.host(rank_);
    return host.incarnation == incarnation_ && host.router != nullptr;
  }

  SimulatedWires& wires_;
  core::Rank rank_;
  std::uint64_t incarnation_;
};

SimulatedWires::SimulatedWires(EventLoop& loop, SimulatedWiresOptions options)
    : loop_(loop),
      options_(std::move(options)),
      delays_(options_.seed, "wires", "delay"),
      cuts_(options_.seed, "wires", "cut"),
      nonces_(options_.seed, "wires", "nonce"),
      hosts_(static_cast<std::size_t>(options_.world.value)) {}

SimulatedWires::~SimulatedWires() = default;

std::unique_ptr<Network> SimulatedWires::open(core::Rank rank, NetworkHandler handler) {
  Host& here = host(rank);
  CHECK(here.router == nullptr, "a rank is opened once, or again after it was killed");
  RouterOptions options{
      .job = options_.job, .self = rank, .world = options_.world, .limits = options_.limits, .nonce = [this] {
        Nonce nonce;
        for (std::byte& byte : nonce) byte = static_cast<std::byte>(nonces_.bits());
        return nonce;
      }};
  here.router = std::make_unique<Router>(std::move(options));
  here.handler = std::move(handler);
  here.frozen = false;
  here.pump_scheduled = false;
  here.armed = std::chrono::nanoseconds::max();
  here.give_up = loop_.now() + options_.connect_deadline;
  ++here.incarnation;
  if (rank != kHub) connect(rank);
  return std::make_unique<Handle>(*this, rank);
}

void SimulatedWires::connect(core::Rank rank) {
  loop_.schedule(draw_delay(), "network.connect", [this, rank, incarnation = host(rank).incarnation] {
    Host& here = host(rank);
    if (here.incarnation != incarnation || !here.router) return;
    if (!host(kHub).router) {
      if (loop_.now() < here.give_up) {
        loop_.schedule(kRetry, "network.retry", [this, rank, incarnation] {
          if (host(rank).incarnation == incarnation && host(rank).router) connect(rank);
        });
      } else {
        // The machine reports what it was told, once it exists.
        auto id = here.router->open(loop_.now());
        here.router->disconnected(id, "nobody listens at rank 0", loop_.now());
        pump_soon(rank);
      }
      return;
    }
    here.wire = std::make_shared<Wire>();
    here.wire->hub = {kHub, host(kHub).incarnation, host(kHub).router->open(loop_.now())};
    at_hub_[here.wire->hub.id] = rank;
    here.wire->rank = {rank, incarnation, here.router->open(loop_.now())};
    pump_soon(kHub);
    pump_soon(rank);
  });
}

std::chrono::nanoseconds SimulatedWires::draw_delay() {
  auto delay = options_.base_delay + delays_.up_to(options_.jitter);
  return delays_.happens(options_.slow_probability) ? 100 * delay : delay;
}

void SimulatedWires::pump_soon(core::Rank rank) {
  Host& here = host(rank);
  if (!here.router || here.frozen || std::exchange(here.pump_scheduled, true)) return;
  loop_.schedule(std::chrono::nanoseconds(0), "network.pump", [this, rank, incarnation = here.incarnation] {
    if (host(rank).incarnation != incarnation) return;
    host(rank).pump_scheduled = false;
    pump(rank);
  });
}

void SimulatedWires::pump(core::Rank rank) {
  Host& here = host(rank);
  if (!here.router || here.frozen) return;
  for (NetworkEvent& event : here.router->take_events()) {
    if (!here.router) return;
    here.handler(std::move(event));
  }
  flush(rank);
}

void SimulatedWires::flush(core::Rank rank) {
  if (!host(rank).router || host(rank).frozen) return;
  if (rank != kHub && host(rank).wire) carry(host(rank).wire, true);
  if (rank == kHub) flush_hub();
  arm(rank);
}

void SimulatedWires::flush_hub() {
  std::vector<core::Rank> ranks;
  for (const auto id : host(kHub).router->take_touched()) ranks.push_back(at_hub_.at(id));
  std::ranges::sort(ranks);
  for (const auto rank : ranks) carry(host(rank).wire, false);
}

void SimulatedWires::arm(core::Rank rank) {
  Host& here = host(rank);
  auto deadline = here.router->deadline();
  if (deadline >= here.armed) return;
  here.armed = deadline;
  auto delay = std::max(deadline - loop_.now(), std::chrono::nanoseconds(0));
  loop_.schedule(delay, "network.tick", [this, rank, incarnation = here.incarnation] {
    Host& later = host(rank);
    if (later.incarnation != incarnation || !later.router) return;
    later.armed = std::chrono::nanoseconds::max();
    if (later.frozen) return;
    later.router->tick(loop_.now());
    pump(rank);
  });
}

bool SimulatedWires::is_live(const End& end) const {
  return host(end.rank).incarnation == end.incarnation && host(end.rank).router != nullptr;
}

bool SimulatedWires::is_passable(const Wire& wire, bool to_hub) const {
  const Host& rank = host(wire.rank.rank);
  return !(to_hub ? rank.blocked_to_hub : rank.blocked_from_hub) &&
         !host(to_hub ? kHub : wire.rank.rank).frozen;
}

/// Moves what a writer has into its direction of the wire, as far as the window allows.
void SimulatedWires::carry(const std::shared_ptr<Wire>& wire, bool to_hub) {
  const End& writer = to_hub ? wire->rank : wire->hub;
  Pipe& pipe = to_hub ? wire->to_hub : wire->to_rank;
  if (!is_live(writer) || host(writer.rank).frozen || pipe.ended) return;
  Router& router = *host(writer.rank).router;
  while (pipe.bytes < options_.window_bytes) {
    auto bytes = router.take_output(writer.id, options_.window_bytes - pipe.bytes);
    if (!bytes.empty()) {
      if (!wire->broken) push(wire, to_hub, std::move(bytes));
      continue;
    }
    if (router.is_over(writer.id)) {
      pipe.ended = true;
      if (!wire->broken) push(wire, to_hub, {});
      router.forget(writer.id);
    }
    return;
  }
}

void SimulatedWires::push(const std::shared_ptr<Wire>& wire, bool to_hub, std::vector<std::byte> bytes) {
  Pipe& pipe = to_hub ? wire->to_hub : wire->to_rank;
  // A stream does not preserve message boundaries: now and then what was written together is split.
  if (bytes.size() > 1 && cuts_.below(4) == 0) {
    auto border = bytes.begin() + 1 + cuts_.below(static_cast<std::uint32_t>(bytes.size() - 1));
    push(wire, to_hub, {bytes.begin(), border});
    bytes.erase(bytes.begin(), border);
  }
  pipe.bytes += bytes.size();
  bytes_carried_ += bytes.size();
  pipe.last_arrival = std::max(pipe.last_arrival, loop_.now() + draw_delay());
  pipe.pieces.push_back({std::move(bytes), pipe.last_arrival});
  schedule_delivery(wire, to_hub);
}

void SimulatedWires::schedule_delivery(const std::shared_ptr<Wire>& wire, bool to_hub) {
  Pipe& pipe = to_hub ? wire->to_hub : wire->to_rank;
  if (pipe.pieces.empty() || pipe.scheduled || !is_passable(*wire, to_hub)) return;
  pipe.scheduled = true;
  auto delay = std::max(pipe.pieces.front().arrives - loop_.now(), std::chrono::nanoseconds(0));
  loop_.schedule(delay, "network.deliver", [this, wire, to_hub] { deliver(wire, to_hub); });
}

void SimulatedWires::deliver(const std::shared_ptr<Wire>& wire, bool to_hub) {
  Pipe& pipe = to_hub ? wire->to_hub : wire->to_rank;
  pipe.scheduled = false;
  if (pipe.pieces.empty() || !is_passable(*wire, to_hub)) return;
  Piece piece = std::move(pipe.pieces.front());
  pipe.pieces.pop_front();
  pipe.bytes -= piece.bytes.size();
  schedule_delivery(wire, to_hub);
  const End& reader = to_hub ? wire->hub : wire->rank;
  if (is_live(reader)) {
    Router& router = *host(reader.rank).router;
    if (piece.bytes.empty()) {
      router.disconnected(reader.id, "end of file", loop_.now());
    } else {
      router.receive(reader.id, piece.bytes, loop_.now());
    }
    pump(reader.rank);
    carry(wire, !to_hub);
  }
  // The window has room again.
  carry(wire, to_hub);
}

void SimulatedWires::wake(core::Rank rank) {
  for (Host& other : hosts_) {
    if (!other.wire || (rank != kHub && other.wire->rank.rank != rank)) continue;
    schedule_delivery(other.wire, true);
    schedule_delivery(other.wire, false);
  }
}

void SimulatedWires::kill(core::Rank rank) {
  stop(rank, true);
}

void SimulatedWires::vanish(core::Rank rank) {
  stop(rank, false);
}

void SimulatedWires::stop(core::Rank rank, bool others_see_it) {
  Host& here = host(rank);
  if (!here.router) return;
  here.router.reset();
  for (Host& other : hosts_) {
    if (!other.wire || (rank != kHub && other.wire->rank.rank != rank)) continue;
    if (others_see_it && !other.wire->broken) push(other.wire, rank != kHub, {});
    other.wire->broken = true;
  }
}

void SimulatedWires::freeze(core::Rank rank) {
  host(rank).frozen = true;
}

void SimulatedWires::thaw(core::Rank rank) {
  Host& here = host(rank);
  if (!std::exchange(here.frozen, false) || !here.router) return;
  wake(rank);
  // What had arrived is read before the time is checked, as in a process that wakes up.
  loop_.schedule(2 * options_.base_delay, "network.thaw", [this, rank, incarnation = here.incarnation] {
    if (host(rank).incarnation != incarnation || !host(rank).router) return;
    host(rank).router->tick(loop_.now());
    pump(rank);
  });
}

void SimulatedWires::cut(core::Rank rank) {
  auto wire = host(rank).wire;
  if (!wire || wire->broken) return;
  wire->broken = true;
  for (bool to_hub : {true, false}) {
    Pipe& pipe = to_hub ? wire->to_hub : wire->to_rank;
    pipe.pieces.clear();
    pipe.bytes = 0;
    push(wire, to_hub, {});
  }
}

void SimulatedWires::block(core::Rank from, core::Rank to) {
  CHECK((from == kHub) != (to == kHub), "the wires of a star have rank 0 at one end");
  (to == kHub ? host(from).blocked_to_hub : host(to).blocked_from_hub) = true;
}

void SimulatedWires::unblock(core::Rank from, core::Rank to) {
  CHECK((from == kHub) != (to == kHub), "the wires of a star have rank 0 at one end");
  (to == kHub ? host(from).blocked_to_hub : host(to).blocked_from_hub) = false;
  wake(to == kHub ? from : to);
}

}  // namespace troupe::actors
