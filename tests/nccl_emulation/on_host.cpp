#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "gpu/host/host_device.hpp"
#include "gpu/order/checked_device.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"

namespace troupe::gpu {

EmulatedNcclDevice open_emulated_nccl_device(DeviceFailed /*on_failure*/, int /*index*/) {
  EmulatedNcclDevice member;
  member.device =
      check_order(open_host_device().value(), [](const std::string& sentence) { ADD_FAILURE() << sentence; });
  member.port.name = "host";
  member.port.native = [](StreamView stream) { return reinterpret_cast<NativeStream>(stream); };
  member.run_on_stream = [](NativeStream native, std::function<void(Completion)> start) {
    reinterpret_cast<StreamView>(native)->enqueue_async("nccl", std::move(start));
  };
  return member;
}

void run_on_emulated_stream(StreamView stream, std::function<void()> body) {
  stream->enqueue("test", {}, std::move(body));
}

}  // namespace troupe::gpu
