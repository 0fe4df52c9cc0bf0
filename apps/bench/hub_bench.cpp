// The hub of the control network with many ranks: what it costs, and whether it loses anybody. The hub is
// this process; a child has all other ranks, each with a connection of its own. Each rank sends rank 0 a
// message every `interval`, which rank 0 answers.
//
//   bench_hub RANKS SECONDS [INTERVAL_MS]
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "actors/world/transport/tcp.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::NetworkEvent;
using actors::TcpNetwork;

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

actors::TcpOptions options_of(int rank, int world, std::uint16_t port) {
  actors::TcpOptions options;
  options.router.job = "bench";
  options.router.self = {rank};
  options.router.world = {world};
  options.address = "127.0.0.1";
  options.port = port;
  options.connect_deadline = 120s;
  return options;
}

/// All ranks but 0, in a process of their own, until it is killed.
[[noreturn]] void play_ranks(int world, int port_from, std::chrono::milliseconds interval) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::uint16_t port = 0;
  if (read(port_from, &port, sizeof port) != sizeof port) _exit(1);
  std::vector<std::unique_ptr<TcpNetwork>> ranks;
  for (int rank = 1; rank < world; ++rank) {
    auto opened = TcpNetwork::open(options_of(rank, world, port), [](const NetworkEvent&) {});
    if (!opened) {
      fmt::print(stderr, "rank {}: {}\n", rank, opened.error().message);
      _exit(1);
    }
    ranks.push_back(std::move(*opened));
  }
  const std::vector<std::byte> message(64);
  while (true) {
    for (const auto& rank : ranks) {
      if (!rank->send({0}, message)) _exit(1);
    }
    std::this_thread::sleep_for(interval);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 0;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 0;
  const std::chrono::milliseconds interval(argc > 3 ? std::atoi(argv[3]) : 1000);
  if (world < 2 || seconds < 1 || interval < 1ms) {
    fmt::print(stderr, "bench_hub RANKS SECONDS [INTERVAL_MS]: expected numbers, of ranks 2 at least\n");
    return 2;
  }
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) play_ranks(world, pipe_ends[0], interval);
  std::atomic<int> joined = 0;
  std::atomic<int> lost = 0;
  std::atomic<long> messages = 0;
  TcpNetwork* answers = nullptr;
  std::atomic<bool> is_ready = false;
  auto hub = TcpNetwork::open(options_of(0, world, 0), [&](const NetworkEvent& event) {
    joined += std::holds_alternative<actors::RankJoined>(event) ? 1 : 0;
    lost += std::holds_alternative<actors::RankLost>(event) ? 1 : 0;
    const auto* arrived = std::get_if<actors::MessageArrived>(&event);
    if (arrived == nullptr || !is_ready) return;
    ++messages;
    if (!answers->send(arrived->from, arrived->message)) ++lost;
  });
  if (!hub) {
    fmt::print(stderr, "{}\n", hub.error().message);
    return 1;
  }
  answers = hub->get();
  const auto began = std::chrono::steady_clock::now();
  const auto port = (*hub)->port();
  if (write(pipe_ends[1], &port, sizeof port) != sizeof port) return 1;
  while (joined < world - 1 && waitpid(child, nullptr, WNOHANG) == 0) std::this_thread::sleep_for(1ms);
  const std::chrono::duration<double> joining = std::chrono::steady_clock::now() - began;
  is_ready = true;
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  const double used = processor_seconds() - before;
  fmt::print(
      "{} ranks joined in {:.2f} s; then {} s: {} messages answered, {:.3f} s of CPU time of the hub, "
      "{:.1f} us "
      "for each rank and second; {} ranks lost\n",
      world, joining.count(), seconds, messages.load(), used, 1e6 * used / world / seconds, lost.load());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return joined == world - 1 && lost == 0 ? 0 : 1;
}
