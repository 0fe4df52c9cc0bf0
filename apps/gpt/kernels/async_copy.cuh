#pragma once

#include "apps/gpt/kernels/element.cuh"

namespace troupe::apps::gpt::cuda {

/// Begins to copy W adjacent elements of global memory into shared memory; zeros if they do not exist, and
/// then nothing is read. The thread goes on meanwhile, so that many copies are under way at a time.
template <class E, int W>
__device__ inline void begin_copy(const E* from, E* to, bool exists) {
#ifdef __CUDACC__
  constexpr unsigned kBytes = sizeof(E) * W;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const std::size_t global = __cvta_generic_to_global(from);
  const unsigned bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
#else
  store<E, W>(exists ? load<E, W>(from) : Pack<E, W>{}, to);
#endif
}

/// Waits until all copies that this thread has begun are there for this thread.
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Calls use(place, first) for the tiles [first, first + step) of [first, end), which fill(place, first)
/// begins to copy into one of kPlaces places in shared memory: with two, a tile is copied while the one
/// before it is used. Called by all threads of the block.
template <int kPlaces, class Fill, class Use>
__device__ inline void for_each_tile(unsigned first, unsigned end, unsigned step, Fill fill, Use use) {
  static_assert(kPlaces == 1 || kPlaces == 2);
  unsigned place = 0;
  if (kPlaces == 2 && first < end) fill(place, first);
  for (; first < end; first += step) {
    if (kPlaces == 1) fill(place, first);
    wait_for_copies();
    __syncthreads();  // the tile is there for all threads, and all have used the one before it
    if (kPlaces == 2 && first + step < end) fill(1 - place, first + step);
    use(place, first);
    if (kPlaces == 1) {
      __syncthreads();
    } else {
      place = 1 - place;
    }
  }
  if (kPlaces == 2) __syncthreads();
}

}  // namespace troupe::apps::gpt::cuda
