#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/buffer.hpp"

namespace troupe::gpu {

/// What a task reads and writes. What it changes in place it writes.
struct Accesses {
  std::vector<ConstBufferView> reads;
  std::vector<BufferView> writes;
};

/// Is told what happens to memory, where a device checks the order of it: Device::order() of accesses of the
/// host, as they happen, and StreamQueue::order() of each task before it is enqueued. Labels outlive it.
class TaskOrder {
 public:
  virtual ~TaskOrder() = default;
  virtual void task(std::string_view label, const Accesses& accesses) = 0;
};

/// `where` is a stream or a device.
template <class Where>
void declare(Where& where, std::string_view label, std::initializer_list<ConstBufferView> reads,
             std::initializer_list<BufferView> writes) {
  if (auto* order = where.order()) order->task(label, {reads, writes});
}

}  // namespace troupe::gpu
