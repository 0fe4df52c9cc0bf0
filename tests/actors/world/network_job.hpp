#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/world/network.hpp"
#include "actors/world/simulation/network.hpp"
#include "actors/world/transport/tcp.hpp"
#include "core/result.hpp"
#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {

/// "joined 1", "1: text", "left 1", "lost 1 peer_lost".
inline std::string line_of(const NetworkEvent& event) {
  if (auto* arrived = std::get_if<MessageArrived>(&event)) {
    return std::to_string(arrived->from.value) + ": " + text_of(arrived->message);
  }
  if (auto* joined = std::get_if<RankJoined>(&event)) return "joined " + std::to_string(joined->rank.value);
  if (auto* left = std::get_if<RankLeft>(&event)) return "left " + std::to_string(left->rank.value);
  const auto& lost = std::get<RankLost>(event);
  return "lost " + std::to_string(lost.rank.value) + " " + core::to_string(lost.why.code);
}

/// The networks of all ranks of a job in this process, and what their handlers heard.
class NetworkJob {
 public:
  explicit NetworkJob(int world) : networks(static_cast<std::size_t>(world)), heard_(networks.size()) {}
  virtual ~NetworkJob() = default;

  virtual void open(int rank) = 0;
  void open_all() {
    for (std::size_t rank = 0; rank < networks.size(); ++rank) open(static_cast<int>(rank));
  }
  /// Time passes until the condition holds; false after a generous limit.
  virtual bool reaches(const std::function<bool()>& condition) = 0;

  core::Result<void> send(int from, int to, std::string_view text) {
    return networks[static_cast<std::size_t>(from)]->send(core::Rank{to}, bytes_of(text));
  }
  /// The process dies.
  void kill(int rank) { networks[static_cast<std::size_t>(rank)].reset(); }

  std::vector<std::string> heard(int rank) {
    std::lock_guard lock(mutex_);
    return heard_[static_cast<std::size_t>(rank)];
  }
  bool hears(int rank, const std::string& line) {
    return reaches([&] {
      auto lines = heard(rank);
      return std::find(lines.begin(), lines.end(), line) != lines.end();
    });
  }
  /// The lines that came from `sender`, in order.
  std::vector<std::string> messages(int rank, int sender) {
    std::vector<std::string> texts;
    std::string prefix = std::to_string(sender) + ": ";
    for (const std::string& line : heard(rank)) {
      if (line.rfind(prefix, 0) == 0) texts.push_back(line.substr(prefix.size()));
    }
    return texts;
  }

  std::vector<std::unique_ptr<Network>> networks;

 protected:
  NetworkHandler handler_of(int rank) {
    return [this, rank](NetworkEvent event) {
      std::lock_guard lock(mutex_);
      heard_[static_cast<std::size_t>(rank)].push_back(line_of(event));
      changed_.notify_all();
    };
  }

  std::mutex mutex_;  // guards heard_
  std::condition_variable changed_;

 private:
  std::vector<std::vector<std::string>> heard_;
};

class TcpJob final : public NetworkJob {
 public:
  explicit TcpJob(int world) : NetworkJob(world) {}
  ~TcpJob() override { networks.clear(); }

  TcpOptions options(int rank) const {
    core::WorldSize world{static_cast<std::int32_t>(networks.size())};
    TcpOptions made{.router = {.job = "job", .self = {rank}, .world = world, .token = token_of(7)}};
    made.router.limits.heartbeat = std::chrono::milliseconds(100);
    made.router.limits.silence = std::chrono::seconds(2);
    made.port = rank == 0 ? std::uint16_t{0} : port;
    return made;
  }
  void open(int rank) override {
    auto network = TcpNetwork::open(options(rank), handler_of(rank));
    ASSERT_TRUE(network) << network.error().message;
    if (rank == 0) port = (*network)->port();
    networks[static_cast<std::size_t>(rank)] = std::move(*network);
  }
  bool reaches(const std::function<bool()>& condition) override {
    auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(2));
    }
    return true;
  }

  std::uint16_t port = 0;
};

class SimulatedJob final : public NetworkJob {
 public:
  explicit SimulatedJob(int world, std::uint64_t seed = 1, SimulatedWiresOptions options = {})
      : NetworkJob(world), loop(seed), wires(loop, complete(std::move(options), world, seed)) {}
  ~SimulatedJob() override { networks.clear(); }

  void open(int rank) override {
    networks[static_cast<std::size_t>(rank)] = wires.open(core::Rank{rank}, handler_of(rank));
  }
  bool reaches(const std::function<bool()>& condition) override {
    return loop.run_until(condition, {.time = loop.now() + std::chrono::seconds(60)}) ==
           EventLoop::Stop::condition;
  }

  EventLoop loop;
  SimulatedWires wires;

 private:
  static SimulatedWiresOptions complete(SimulatedWiresOptions options, int world, std::uint64_t seed) {
    options.world = {world};
    options.seed = seed;
    return options;
  }
};

}  // namespace troupe::actors
