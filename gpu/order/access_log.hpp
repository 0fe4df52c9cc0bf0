#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/buffer.hpp"
#include "gpu/order/clock.hpp"

namespace troupe::gpu {

/// A task of a stream, or an access of the host.
struct TaskName {
  std::string label;
  std::string place;  ///< "stream update", "the host"
};

/// Two accesses to the same bytes, of which one writes and neither is known to come first.
struct OrderConflict {
  TaskName earlier;  ///< as they were enqueued
  TaskName later;
  bool earlier_writes = false;
  bool later_writes = false;
  bool later_frees = false;
  std::uintptr_t memory = 0;  ///< the allocation
  std::size_t allocated = 0;
  std::size_t first = 0;  ///< the first byte of both in it
  std::size_t bytes = 0;

  /// Names both and the edge that is missing.
  std::string sentence() const;
};

/// The tasks that touched bytes last, of the memory that it was told of: per range the last write and, per
/// line, the last read after it. Whatever else happened to the range came before these. Ranges join when they
/// are written together, so that their number follows the borders in use, not the accesses. Not thread safe.
class AccessLog {
 public:
  struct Task {
    Moment moment;
    std::shared_ptr<const TaskName> name;  ///< shared by all ranges that it touched
  };

  /// Memory that nobody else has.
  void add(ConstBufferView memory);
  /// All that was logged of it is forgotten after a last check.
  void remove(ConstBufferView memory, const Task& task, const OrderClock& clock,
              std::vector<OrderConflict>& found);

  /// `task` happens at `clock`. Memory that was not added is ignored. An access that covers several
  /// allocations is a programming error.
  void read(ConstBufferView range, const Task& task, const OrderClock& clock,
            std::vector<OrderConflict>& found);
  void write(ConstBufferView range, const Task& task, const OrderClock& clock,
             std::vector<OrderConflict>& found);

  /// The same bytes in fewer ranges: those that follow one another in one allocation become one. A rank that
  /// exchanges a part with each of many others would otherwise have as many ranges.
  template <class View>
  std::vector<View> joined(const std::vector<View>& views) {
    std::vector<View> found;
    Allocations::iterator place = allocations_.end();
    for (const View& view : views) {
      if (view.bytes == 0) continue;
      if (!found.empty() && found.back().data + found.back().bytes == view.data && contains(place, view)) {
        found.back().bytes += view.bytes;
        continue;
      }
      found.push_back(view);
      if (&view != &views.back()) place = find(reinterpret_cast<std::uintptr_t>(view.data));
    }
    return found;
  }

  std::size_t ranges() const;

 private:
  struct Range {
    std::uintptr_t end = 0;
    std::optional<Task> write;
    std::vector<Task> reads;  ///< after the write, none of which is known to come before another
  };
  using Ranges = std::map<std::uintptr_t, Range>;  ///< by begin; they do not overlap
  struct Allocation {
    std::size_t bytes = 0;
    Ranges ranges;
  };
  using Allocations = std::map<std::uintptr_t, Allocation>;

  Allocations::iterator find(std::uintptr_t address);
  bool contains(Allocations::iterator place, ConstBufferView view) const;
  static void cut(Ranges& ranges, std::uintptr_t at);
  template <class Each>
  static void for_each(Ranges& ranges, std::uintptr_t begin, std::uintptr_t end, const Each& each);

  Allocations allocations_;
};

}  // namespace troupe::gpu
