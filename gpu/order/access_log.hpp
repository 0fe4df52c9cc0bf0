#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/buffer.hpp"
#include "gpu/order/clock.hpp"

namespace troupe::gpu {

/// A task of a stream, or an access of the host. Both texts live as long as what is logged of it.
struct TaskName {
  std::string_view label;
  std::string_view place;  ///< "stream update", "the host"
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
    TaskName name;
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

  /// Calls `each` with the same bytes in fewer ranges: those that follow one another in one allocation become
  /// one. A rank that exchanges a part with each of many others would otherwise have as many ranges.
  template <class View, class Each>
  void for_each_joined(const std::vector<View>& views, const Each& each) {
    View joined;
    const Allocation* place = nullptr;
    for (const View& view : views) {
      if (view.bytes == 0) continue;
      if (joined.bytes > 0 && joined.data + joined.bytes == view.data) {
        if (place == nullptr) place = find(reinterpret_cast<std::uintptr_t>(joined.data));
        if (place != nullptr && place->contains(view)) {
          joined.bytes += view.bytes;
          continue;
        }
      }
      if (joined.bytes > 0) each(joined);
      joined = view;
      place = nullptr;
    }
    if (joined.bytes > 0) each(joined);
  }

  std::size_t ranges() const;

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::optional<Task> write;
    std::vector<Task> reads;  ///< after the write, none of which is known to come before another
  };
  using Ranges = std::vector<Range>;  ///< in ascending order; they do not overlap
  struct Allocation {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    Ranges ranges;

    bool contains(ConstBufferView view) const {
      return reinterpret_cast<std::uintptr_t>(view.data) + view.bytes <= begin + bytes;
    }
  };

  /// Null: the address is in none.
  Allocation* find(std::uintptr_t address);
  static std::pair<std::size_t, std::size_t> cut(Ranges& ranges, std::uintptr_t begin, std::uintptr_t end);

  std::vector<Allocation> allocations_;  ///< in ascending order
};

}  // namespace troupe::gpu
