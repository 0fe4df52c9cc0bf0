#include "actors/chaos/links.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

HostLinks::HostLinks(EventLoop& loop, std::uint64_t seed, int hosts)
    : loop_(loop),
      delays_(seed, "chaos", "links"),
      hosts_(hosts),
      pipes_(static_cast<std::size_t>(hosts * hosts)) {}

void HostLinks::send(int from, int to, std::function<void()> deliver) {
  auto& of = pipe(from, to);
  const auto most = from == to ? std::chrono::microseconds(40) : std::chrono::microseconds(400);
  of.last_arrival =
      std::max(of.last_arrival + std::chrono::nanoseconds(1), loop_.now() + delays_.up_to(most));
  loop_.schedule(of.last_arrival - loop_.now(), "message",
                 [this, from, to, what = std::move(deliver)]() mutable { pass(from, to, std::move(what)); });
}

void HostLinks::pass(int from, int to, std::function<void()> deliver) {
  auto& of = pipe(from, to);
  if (of.blocks > 0 || !of.waiting.empty()) return of.waiting.push_back(std::move(deliver));
  deliver();
}

void HostLinks::drain(int from, int to) {
  auto& of = pipe(from, to);
  while (of.blocks == 0 && !of.waiting.empty()) {
    const auto deliver = std::move(of.waiting.front());
    of.waiting.pop_front();
    deliver();
  }
}

void HostLinks::block(int from, int to) {
  auto& of = pipe(from, to);
  if (of.blocks++ == 0) ++of.cuts;
  if (of.blocks == 1) expect(from, to);
}

void HostLinks::expect(int from, int to) {
  const auto cut = pipe(from, to).cuts;
  loop_.schedule(kSilence, "silence", [this, from, to, cut] {
    const auto& of = pipe(from, to);
    if (of.blocks == 0 || of.cuts != cut) return;
    std::vector<int> concerned;
    for (const auto& [id, each] : watches_) {
      const bool is_silent = loop_.now() - each.since >= kSilence;
      if (each.from == from && each.to == to && is_silent) concerned.push_back(id);
    }
    for (const int id : concerned) {
      const auto found = watches_.find(id);
      if (found == watches_.end()) continue;
      const auto silent = found->second.silent;
      silent();
    }
    expect(from, to);
  });
}

void HostLinks::unblock(int from, int to) {
  if (--pipe(from, to).blocks > 0) return;
  loop_.schedule({}, "cut has ended", [this, from, to] { drain(from, to); });
}

void HostLinks::forget(int from) {
  for (int to = 0; to < hosts_; ++to) pipe(from, to).waiting.clear();
}

int HostLinks::watch(int from, int to, std::function<void()> silent) {
  watches_[++last_watch_] = {from, to, loop_.now(), std::move(silent)};
  return last_watch_;
}

HostClock::~HostClock() {
  for (const auto& [id, alarm] : alarms_) loop_.cancel(alarm.in_loop);
}

AlarmId HostClock::arm(std::chrono::nanoseconds delay, std::function<void()> callback) {
  auto& alarm = alarms_[++last_];
  alarm = {0, now() + delay, std::move(callback)};
  set(last_, alarm);
  return last_;
}

void HostClock::set(AlarmId id, Alarm& alarm) {
  alarm.in_loop = loop_.schedule(std::max(std::chrono::nanoseconds(0), alarm.due - now()), "alarm",
                                 [this, id] { ring(id); });
}

void HostClock::ring(AlarmId id) {
  const auto found = alarms_.find(id);
  if (is_stopped_) {
    found->second.in_loop = 0;
    return;
  }
  const auto callback = std::move(found->second.callback);
  alarms_.erase(found);
  callback();
}

void HostClock::cancel(AlarmId id) {
  const auto found = alarms_.find(id);
  if (found == alarms_.end()) return;
  loop_.cancel(found->second.in_loop);
  alarms_.erase(found);
}

void HostClock::jump(std::chrono::nanoseconds by) {
  ahead_ += by;
  for (auto& [id, alarm] : alarms_) {
    if (alarm.in_loop == 0) continue;
    loop_.cancel(alarm.in_loop);
    set(id, alarm);
  }
}

void HostClock::go_on() {
  is_stopped_ = false;
  for (auto& [id, alarm] : alarms_) {
    if (alarm.in_loop == 0) set(id, alarm);
  }
}

}  // namespace troupe::actors
