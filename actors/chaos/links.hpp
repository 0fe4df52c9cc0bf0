#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "actors/world/random.hpp"
#include "actors/world/simulation/event_loop.hpp"
#include "core/list.hpp"

namespace troupe::actors {

/// What hosts send each other, launchers and ranks alike: in order between two of them, unless it is cut off.
/// What was sent into a cut waits, as a connection's bytes do, until the cut has ended or somebody gives the
/// connection up. No bytes are modelled, and no connections: who is addressed says whether it still hears.
class HostLinks {
 public:
  /// A peer that is silent for so long counts as lost, as in the transport and in launchers.
  static constexpr std::chrono::seconds kSilence{5};

  HostLinks(EventLoop& loop, std::uint64_t seed, int hosts);

  void send(int from, int to, std::function<void()> deliver);
  /// Nothing passes from one to the other until unblock() was called as often.
  void block(int from, int to);
  void unblock(int from, int to);
  bool is_open(int from, int to) const { return pipe(from, to).blocks == 0; }
  bool is_open_both_ways(int one, int other) const { return is_open(one, other) && is_open(other, one); }
  /// What that host has sent and nobody has received yet is lost.
  void forget(int from);
  /// Calls `silent` whenever nothing has come from one host to the other for kSilence, counted from this call
  /// on. Returns a number for unwatch().
  int watch(int from, int to, std::function<void()> silent);
  void unwatch(int watch) { watches_.erase(watch); }

 private:
  struct Pipe {
    int blocks = 0;
    std::uint64_t cuts = 0;  ///< so far
    std::chrono::nanoseconds last_arrival{};
    std::deque<std::function<void()>> waiting;
  };
  struct Watch {
    int from = 0;
    int to = 0;
    std::chrono::nanoseconds since{};
    std::function<void()> silent;
  };

  const Pipe& pipe(int from, int to) const { return pipes_[from * hosts_ + to]; }
  Pipe& pipe(int from, int to) { return pipes_[from * hosts_ + to]; }
  void pass(int from, int to, std::function<void()> deliver);
  void drain(int from, int to);
  void expect(int from, int to);

  EventLoop& loop_;
  RandomStream delays_;
  int hosts_;
  core::List<int, Pipe> pipes_;
  std::map<int, Watch> watches_;
  int last_watch_ = 0;
};

/// The clock of a process that may be stopped, may end, and whose time may go ahead.
class HostClock final : public Clock {
 public:
  explicit HostClock(EventLoop& loop) : loop_(loop) {}
  ~HostClock() override;

  std::chrono::nanoseconds now() const override { return loop_.now() + ahead_; }
  AlarmId arm(std::chrono::nanoseconds delay, std::function<void()> callback) override;
  void cancel(AlarmId id) override;

  void jump(std::chrono::nanoseconds by);
  void stop() { is_stopped_ = true; }
  void go_on();

 private:
  struct Alarm {
    AlarmId in_loop = 0;
    std::chrono::nanoseconds due{};
    std::function<void()> callback;
  };
  void set(AlarmId id, Alarm& alarm);
  void ring(AlarmId id);

  EventLoop& loop_;
  std::chrono::nanoseconds ahead_{};
  bool is_stopped_ = false;
  std::map<AlarmId, Alarm> alarms_;
  AlarmId last_ = 0;
};

}  // namespace troupe::actors
