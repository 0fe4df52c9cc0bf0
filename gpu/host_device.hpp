#pragma once

/// Marks arithmetic shared by the host's kernels and the CUDA kernels, so that both give the same bits.
#ifdef __CUDACC__
#define TROUPE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TROUPE_HOST_DEVICE [[gnu::always_inline]] inline
#endif
