#include "gpu/order/access_log.hpp"

#include <algorithm>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

std::string_view verb(bool writes, bool frees) {
  return frees ? "frees" : writes ? "writes" : "reads";
}

/// Collects what conflicts with one access.
struct Search {
  const AccessLog::Task& task;
  const OrderClock& clock;
  std::uintptr_t memory;
  std::size_t allocated;
  bool writes;
  bool frees;
  std::vector<OrderConflict>& found;

  void compare(const AccessLog::Task& earlier, bool earlier_writes, std::uintptr_t begin,
               std::uintptr_t end) const {
    if (clock.covers(earlier.moment)) return;
    OrderConflict conflict{*earlier.name, *task.name, earlier_writes, writes, frees};
    conflict.memory = memory;
    conflict.allocated = allocated;
    conflict.first = begin - memory;
    conflict.bytes = end - begin;
    found.push_back(std::move(conflict));
  }
};

std::uintptr_t address_of(ConstBufferView view) {
  return reinterpret_cast<std::uintptr_t>(view.data);
}

}  // namespace

std::string OrderConflict::sentence() const {
  const bool from_host = earlier.place == "the host";
  const bool to_host = later.place == "the host" || later_frees;
  std::string edge = from_host ? "the host tells nobody that it has"
                               : fmt::format("record an event on {} after it", earlier.place);
  if (from_host) {
    edge = fmt::format("{} must be enqueued by who knows that the host's access has ended", later.label);
  } else if (to_host) {
    edge += ", and wait on the host for it";
  } else {
    edge += fmt::format(", and let {} wait for it before {}", later.place, later.label);
  }
  return fmt::format("'{}' on {} {} bytes {} to {} of {} that '{}' on {} {}, and nothing orders the two: {}",
                     later.label, later.place, verb(later_writes, later_frees), first, first + bytes,
                     allocated, earlier.label, earlier.place,
                     earlier_writes ? "may not have written yet" : "may still read", edge);
}

void AccessLog::add(ConstBufferView memory) {
  if (memory.bytes > 0) allocations_[address_of(memory)] = {memory.bytes, {}};
}

AccessLog::Allocations::iterator AccessLog::find(std::uintptr_t address) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return allocations_.end();
  --after;
  return address - after->first < after->second.bytes ? after : allocations_.end();
}

bool AccessLog::contains(Allocations::iterator place, ConstBufferView view) const {
  return place != allocations_.end() && address_of(view) + view.bytes <= place->first + place->second.bytes;
}

/// No range crosses this address afterwards.
void AccessLog::cut(Ranges& ranges, std::uintptr_t at) {
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return;
  auto& [begin, range] = *--after;
  if (begin == at || range.end <= at) return;
  Range rest = range;
  range.end = at;
  ranges.emplace_hint(std::next(after), at, std::move(rest));
}

template <class Each>
void AccessLog::for_each(Ranges& ranges, std::uintptr_t begin, std::uintptr_t end, const Each& each) {
  cut(ranges, begin);
  cut(ranges, end);
  for (auto range = ranges.lower_bound(begin); range != ranges.end() && range->first < end; ++range)
    each(range->first, range->second);
}

void AccessLog::read(ConstBufferView view, const Task& task, const OrderClock& clock,
                     std::vector<OrderConflict>& found) {
  const auto begin = address_of(view);
  const auto place = find(begin);
  if (view.bytes == 0 || place == allocations_.end()) return;
  const auto end = begin + view.bytes;
  auto& [memory, allocation] = *place;
  const Search search{task, clock, memory, allocation.bytes, false, false, found};
  auto& ranges = allocation.ranges;
  auto untouched = begin;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> gaps;
  for_each(ranges, begin, end, [&](std::uintptr_t first, Range& range) {
    if (first > untouched) gaps.emplace_back(untouched, first);
    untouched = range.end;
    if (range.write) search.compare(*range.write, true, first, range.end);
    std::erase_if(range.reads, [&](const Task& earlier) { return clock.covers(earlier.moment); });
    range.reads.push_back(task);
  });
  if (untouched < end) gaps.emplace_back(untouched, end);
  for (const auto& [first, last] : gaps) ranges[first] = {last, std::nullopt, {task}};
}

void AccessLog::write(ConstBufferView view, const Task& task, const OrderClock& clock,
                      std::vector<OrderConflict>& found) {
  const auto begin = address_of(view);
  const auto place = find(begin);
  if (view.bytes == 0 || place == allocations_.end()) return;
  const auto end = begin + view.bytes;
  auto& [memory, allocation] = *place;
  const Search search{task, clock, memory, allocation.bytes, true, false, found};
  auto& ranges = allocation.ranges;
  for_each(ranges, begin, end, [&](std::uintptr_t first, const Range& range) {
    if (range.write) search.compare(*range.write, true, first, range.end);
    for (const Task& earlier : range.reads) search.compare(earlier, false, first, range.end);
  });
  ranges.erase(ranges.lower_bound(begin), ranges.lower_bound(end));
  ranges[begin] = {end, task, {}};
}

void AccessLog::remove(ConstBufferView view, const Task& task, const OrderClock& clock,
                       std::vector<OrderConflict>& found) {
  const auto place = allocations_.find(address_of(view));
  if (place == allocations_.end()) return;
  const auto& [memory, allocation] = *place;
  const Search search{task, clock, memory, allocation.bytes, true, true, found};
  for (const auto& [first, range] : allocation.ranges) {
    if (range.write) search.compare(*range.write, true, first, range.end);
    for (const Task& earlier : range.reads) search.compare(earlier, false, first, range.end);
  }
  allocations_.erase(place);
}

std::size_t AccessLog::ranges() const {
  std::size_t count = 0;
  for (const auto& [memory, allocation] : allocations_) count += allocation.ranges.size();
  return count;
}

}  // namespace troupe::gpu
