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
    OrderConflict conflict{earlier.name, task.name, earlier_writes, writes, frees};
    conflict.memory = memory;
    conflict.allocated = allocated;
    conflict.first = begin - memory;
    conflict.bytes = end - begin;
    found.push_back(std::move(conflict));
  }
  /// For what writes.
  template <class Range>
  void compare(const Range& range) const {
    if (range.write) compare(*range.write, true, range.begin, range.end);
    for (const AccessLog::Task& earlier : range.reads) compare(earlier, false, range.begin, range.end);
  }
};

std::uintptr_t address_of(ConstBufferView view) {
  return reinterpret_cast<std::uintptr_t>(view.data);
}

/// Whatever has a `begin`.
struct BeginsBefore {
  template <class One>
  bool operator()(const One& one, std::uintptr_t address) const {
    return one.begin < address;
  }
  template <class One>
  bool operator()(std::uintptr_t address, const One& one) const {
    return address < one.begin;
  }
};

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
  if (memory.bytes == 0) return;
  const auto begin = address_of(memory);
  const auto after = std::upper_bound(allocations_.begin(), allocations_.end(), begin, BeginsBefore());
  allocations_.insert(after, {begin, memory.bytes, {}});
}

AccessLog::Allocation* AccessLog::find(std::uintptr_t address) {
  const auto after = std::upper_bound(allocations_.begin(), allocations_.end(), address, BeginsBefore());
  if (after == allocations_.begin()) return nullptr;
  auto& before = *std::prev(after);
  return address - before.begin < before.bytes ? &before : nullptr;
}

/// The places of the first range in `begin` to `end` and of the first one after it. None crosses its borders
/// afterwards.
std::pair<std::size_t, std::size_t> AccessLog::cut(Ranges& ranges, std::uintptr_t begin, std::uintptr_t end) {
  const auto split = [&](std::size_t place, std::uintptr_t at) {
    if (place == 0 || ranges[place - 1].end <= at) return;
    Range rest = ranges[place - 1];
    rest.begin = at;
    ranges[place - 1].end = at;
    ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(place), std::move(rest));
  };
  const auto found = std::lower_bound(ranges.begin(), ranges.end(), begin, BeginsBefore());
  const auto first = static_cast<std::size_t>(found - ranges.begin());
  split(first, begin);
  // Few are between the two, so a second search would take longer.
  auto last = first;
  while (last < ranges.size() && ranges[last].begin < end) ++last;
  split(last, end);
  return {first, last};
}

void AccessLog::read(ConstBufferView view, const Task& task, const OrderClock& clock,
                     std::vector<OrderConflict>& found) {
  const auto begin = address_of(view);
  auto* const allocation = find(begin);
  if (view.bytes == 0 || allocation == nullptr) return;
  const auto end = begin + view.bytes;
  const Search search{task, clock, allocation->begin, allocation->bytes, false, false, found};
  auto& ranges = allocation->ranges;
  auto place = cut(ranges, begin, end).first;
  for (auto untouched = begin; untouched < end; ++place) {
    const auto next = place < ranges.size() ? std::min(ranges[place].begin, end) : end;
    if (untouched < next)
      ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(place), {untouched, next, {}, {}});
    Range& range = ranges[place];
    untouched = range.end;
    if (range.write) search.compare(*range.write, true, range.begin, range.end);
    std::erase_if(range.reads, [&](const Task& earlier) { return clock.covers(earlier.moment); });
    range.reads.push_back(task);
  }
}

void AccessLog::write(ConstBufferView view, const Task& task, const OrderClock& clock,
                      std::vector<OrderConflict>& found) {
  const auto begin = address_of(view);
  auto* const allocation = find(begin);
  if (view.bytes == 0 || allocation == nullptr) return;
  const auto end = begin + view.bytes;
  const Search search{task, clock, allocation->begin, allocation->bytes, true, false, found};
  auto& ranges = allocation->ranges;
  const auto [first, last] = cut(ranges, begin, end);
  for (auto place = first; place < last; ++place) search.compare(ranges[place]);
  const auto at = [&](std::size_t place) { return ranges.begin() + static_cast<std::ptrdiff_t>(place); };
  if (first == last)
    ranges.insert(at(first), Range());
  else
    ranges.erase(at(first + 1), at(last));
  Range& written = ranges[first];
  written.begin = begin;
  written.end = end;
  written.write = task;
  written.reads.clear();
}

void AccessLog::remove(ConstBufferView view, const Task& task, const OrderClock& clock,
                       std::vector<OrderConflict>& found) {
  auto* const allocation = find(address_of(view));
  if (allocation == nullptr || allocation->begin != address_of(view)) return;
  const Search search{task, clock, allocation->begin, allocation->bytes, true, true, found};
  for (const Range& range : allocation->ranges) search.compare(range);
  allocations_.erase(allocations_.begin() + (allocation - allocations_.data()));
}

std::size_t AccessLog::ranges() const {
  std::size_t count = 0;
  for (const Allocation& allocation : allocations_) count += allocation.ranges.size();
  return count;
}

}  // namespace troupe::gpu
