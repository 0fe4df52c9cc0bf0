#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

#include "core/result.hpp"

namespace troupe::gpu {

class EventPool;

/// A CUDA event, lent by its pool. Move only; empty after a move.
class PooledEvent {
 public:
  PooledEvent() = default;
  PooledEvent(EventPool& pool, cudaEvent_t event) : pool_(&pool), event_(event) {}
  PooledEvent(PooledEvent&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), event_(std::exchange(other.event_, nullptr)) {}
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    if (this != &other) {
      give_back();
      pool_ = std::exchange(other.pool_, nullptr);
      event_ = std::exchange(other.event_, nullptr);
    }
    return *this;
  }
  ~PooledEvent() { give_back(); }

  cudaEvent_t native() const { return event_; }

 private:
  void give_back();

  EventPool* pool_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

/// Events of one device. They are created when none is free, and destroyed only with the pool: creating and
/// destroying them may wait for the device. Thread-safe.
class EventPool {
 public:
  enum class Timing { without, with };

  EventPool(int device, Timing timing) : device_(device), timing_(timing) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// The event may represent an old record, which is no longer awaited.
  core::Result<PooledEvent> take();

 private:
  friend class PooledEvent;
  void give(cudaEvent_t event);

  const int device_;
  const Timing timing_;
  std::mutex mutex_;  // guards free_
  std::vector<cudaEvent_t> free_;
};

}  // namespace troupe::gpu
