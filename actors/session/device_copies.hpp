#pragma once

#include "actors/session/context.hpp"
#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/stream.hpp"

namespace troupe::actors {

/// Copies that the trainer's thread waits for, between steps. They come after what the trainer has enqueued
/// on its compute stream.
class DeviceCopies {
 public:
  /// The context must outlive it.
  explicit DeviceCopies(const SessionContext& context) : in_(context) {}

  core::Result<void> copy(gpu::ConstBufferView from, gpu::BufferView to);
  /// Waits until what the trainer has enqueued is done.
  core::Result<void> settle();
  /// Waits until what is enqueued is done, also where time is simulated.
  core::Result<void> wait(gpu::StreamView stream);

 private:
  const SessionContext& in_;
  gpu::Stream stream_;
};

}  // namespace troupe::actors
