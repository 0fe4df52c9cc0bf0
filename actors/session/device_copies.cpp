#include "actors/session/device_copies.hpp"

#include "core/errors.hpp"
#include "gpu/kernels.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

using core::Result;

Result<void> DeviceCopies::copy(gpu::ConstBufferView from, gpu::BufferView to) {
  auto stream = in_.data.marks().compute();
  if (stream == nullptr) {
    if (!stream_) stream_ = TRY(in_.world.device().create_stream({"first values", 0}));
    stream = stream_.get();
  }
  gpu::copy(from, to, stream);
  return wait(stream);
}

Result<void> DeviceCopies::settle() {
  return in_.data.marks().compute() != nullptr ? wait(in_.data.marks().compute()) : Result<void>{};
}

Result<void> DeviceCopies::wait(gpu::StreamView stream) {
  stream->notify([&world = in_.world] {
    const messages::Address trainer{world.rank(), messages::Role::trainer, 0};
    world.post({trainer, trainer, world.epoch(), messages::LoadedShared{}});
  });
  return in_.inbox.wait_shared(3 * in_.options.step_deadline);
}

}  // namespace troupe::actors
