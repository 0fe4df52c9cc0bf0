#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "apps/gpt/pipeline/trainable_stage.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Losses of microbatches on their way from the device, in order, and then until they are taken.
class LossQueue {
 public:
  /// The device must outlive it.
  static core::Result<LossQueue> create(gpu::Device& device, std::size_t layers);

  /// Where the next one may be among kMostLosses on the device. Waits only while too many are under way.
  core::Result<std::size_t> next_place();
  /// Enqueues the copies: `words` is one double at that place, `earlier` are doubles that take the place of
  /// the first ones of routes.
  void push(gpu::ConstBufferView words, std::vector<double> routes, gpu::ConstBufferView earlier,
            gpu::StreamView stream);
  /// The first so many. Waits for them alone.
  core::Result<std::vector<StageLoss>> take(std::size_t count);

 private:
  explicit LossQueue(std::size_t layers) : layers_(layers) {}
  core::Result<void> wait_for(std::size_t count);
  /// Pinned: the loss of the words, and what balance adds in each layer.
  gpu::BufferView pinned(std::size_t number) const;

  std::size_t layers_;
  gpu::Buffer memory_;
  std::vector<gpu::Event> copied_;   ///< in turn
  std::size_t pushed_ = 0;           ///< since the beginning
  std::size_t read_ = 0;             ///< of them from pinned memory
  std::deque<StageLoss> losses_;     ///< that are not taken
  std::deque<std::size_t> earlier_;  ///< of those that are not read: doubles that come for routes
};

}  // namespace troupe::apps::gpt
