#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "gpu/collective/nccl/cuda/cuda_port.hpp"
#include "gpu/cuda/cuda_device.hpp"
#include "gpu/cuda/cuda_stream.hpp"
#include "gpu/order/checked_device.hpp"
#include "tests/cuda_emulation/emulated_machine.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"

namespace troupe::gpu {

EmulatedNcclDevice open_emulated_nccl_device(DeviceFailed on_failure, int index) {
  EmulatedNcclDevice member;
  member.device =
      check_order(open_cuda_device({.device = index, .on_failure = std::move(on_failure)}).value(),
                  [](const std::string& sentence) { ADD_FAILURE() << sentence; });
  member.port = cuda_nccl_port(index);
  member.run_on_stream = [](NativeStream native, std::function<void(Completion)> start) {
    native->queue.enqueue_async("nccl", std::move(start));
  };
  member.memory.take = [](std::size_t bytes) -> void* {
    void* memory = nullptr;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
  };
  member.memory.give_back = [](void* memory) { (void)cudaFree(memory); };
  return member;
}

void run_on_emulated_stream(StreamView stream, std::function<void()> body) {
  cuda_stream(stream).native()->queue.enqueue("test", {}, std::move(body));
}

}  // namespace troupe::gpu
