#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "apps/gpt/stage/trainable_stage.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// At most this many losses may be waiting to be taken.
inline constexpr std::size_t kMostLosses = 64;

/// Losses of microbatches on the way from the device, in order, which are then kept until they are taken.
class LossQueue {
 public:
  /// The device must outlive it.
  static core::Result<LossQueue> create(gpu::Device& device, std::size_t layers);

  /// The place of the next loss among kMostLosses on the device. Waits only while too many are in flight.
  core::Result<std::size_t> next_place();
  /// Enqueues the copies: `words` is one double at that place, `earlier` are doubles that replace the first
  /// ones of `routes`.
  void push(gpu::ConstBufferView words, std::vector<double> routes, gpu::ConstBufferView earlier,
            gpu::StreamView stream);
  /// The first `count` losses. Waits only for these.
  core::Result<std::vector<StageLoss>> take(std::size_t count);

 private:
  explicit LossQueue(std::size_t layers) : layers_(layers) {}
  core::Result<void> wait_for(std::size_t count);
  /// Pinned: the loss of the words, and the balance loss of each layer.
  gpu::BufferView pinned(std::size_t number) const;

  std::size_t layers_;
  gpu::Buffer memory_;
  std::vector<gpu::Event> copied_;   ///< used in turn
  std::size_t pushed_ = 0;           ///< since the beginning
  std::size_t read_ = 0;             ///< of these, read from pinned memory
  std::deque<StageLoss> losses_;     ///< not taken yet
  std::deque<std::size_t> earlier_;  ///< for the losses not read yet: the doubles that replace routes
};

}  // namespace troupe::apps::gpt
