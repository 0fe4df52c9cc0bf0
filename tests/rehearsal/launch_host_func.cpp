// The one function of the runtime that only the emulated NCCL calls.
#include "tests/cuda_emulation/emulated_machine.hpp"

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  stream->queue.enqueue("", {}, [=] { function(argument); });
  return cudaSuccess;
}
