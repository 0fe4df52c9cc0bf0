// What PyTorch would call on a GPU; the version script of libtroupe.so hides the runtime's own name.
#include "tests/cuda_emulation/include/cuda_runtime_api.h"

extern "C" int troupe_rehearsal_synchronize(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}
