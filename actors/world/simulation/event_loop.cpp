#include "actors/world/simulation/event_loop.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::actors {

EventLoop::EventLoop(std::uint64_t seed) : picks_(seed, "event_loop", "pick") {}

AlarmId EventLoop::schedule(std::chrono::nanoseconds delay, std::string_view label,
                            std::function<void()> action) {
  CHECK(delay.count() >= 0, "nothing can be scheduled in the past");
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.action = std::move(action);
  slot.label = label;
  Entry entry{now_ + delay, scheduled_++, index, slot.generation};
  ++pending_;
  if (delay.count() == 0) {
    ready_.push_back(entry);
  } else {
    later_.push_back(entry);
    std::push_heap(later_.begin(), later_.end());
  }
  return (AlarmId{slot.generation} << 32) | index;
}

void EventLoop::cancel(AlarmId id) {
  auto index = static_cast<std::uint32_t>(id);
  if (index >= slots_.size() || slots_[index].generation != id >> 32) return;
  // The entry stays in its queue, where it no longer counts as live. What the action holds is released at the
  // end, because that may call back into the loop.
  auto dropped = std::move(slots_[index].action);
  release(index);
}

void EventLoop::release(std::uint32_t slot) {
  slots_[slot].action = nullptr;
  ++slots_[slot].generation;
  free_slots_.push_back(slot);
  --pending_;
}

void EventLoop::note(std::string_view what) {
  trace_hash_ = core::hash64(what, trace_hash_);
}

bool EventLoop::advance(std::chrono::nanoseconds limit) {
  while (!later_.empty() && !is_live(later_.front())) {
    std::pop_heap(later_.begin(), later_.end());
    later_.pop_back();
  }
  if (later_.empty() || later_.front().time > limit) return false;
  now_ = later_.front().time;
  while (!later_.empty() && later_.front().time == now_) {
    std::pop_heap(later_.begin(), later_.end());
    if (is_live(later_.back())) ready_.push_back(later_.back());
    later_.pop_back();
  }
  return true;
}

std::optional<EventLoop::Entry> EventLoop::pick(std::chrono::nanoseconds limit) {
  while (!ready_.empty() || advance(limit)) {
    std::size_t place = ready_.size() == 1 ? 0 : picks_.below(static_cast<std::uint32_t>(ready_.size()));
    Entry entry = std::exchange(ready_[place], ready_.back());
    ready_.pop_back();
    if (is_live(entry)) return entry;
  }
  return std::nullopt;
}

EventLoop::Stop EventLoop::run(Limits limits) {
  return run_until([] { return false; }, limits);
}

EventLoop::Stop EventLoop::run_until(const std::function<bool()>& until, Limits limits) {
  for (std::uint64_t ran = 0; !until(); ++ran) {
    if (pending_ == 0) return Stop::quiet;
    if (ran == limits.events) return Stop::event_limit;
    auto next = pick(limits.time);
    if (!next) {
      now_ = std::max(now_, limits.time);
      return Stop::time_limit;
    }
    run_one(*next);
  }
  return Stop::condition;
}

void EventLoop::run_one(const Entry& entry) {
  Slot& slot = slots_[entry.slot];
  auto action = std::move(slot.action);
  trace_hash_ = core::hash64(slot.label, trace_hash_ + static_cast<std::uint64_t>(now_.count()));
  release(entry.slot);
  ++events_;
  action();
}

}  // namespace troupe::actors
