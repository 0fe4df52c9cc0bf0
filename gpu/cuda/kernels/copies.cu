#include "gpu/cuda/kernels/packs.cuh"

namespace troupe::gpu {
namespace {

constexpr int kThreads = 256;

/// Copies the complete words of one range, and returns how many bytes those are.
template <class Word>
__device__ __forceinline__ std::size_t copy_words(const char* source, char* destination, std::size_t bytes) {
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t words = bytes / sizeof(Word);
  assert((reinterpret_cast<std::uintptr_t>(source) | reinterpret_cast<std::uintptr_t>(destination)) %
             sizeof(Word) ==
         0);
  for (std::size_t word = thread; word < words; word += threads) {
    reinterpret_cast<Word*>(destination)[word] = reinterpret_cast<const Word*>(source)[word];
  }
  return words * sizeof(Word);
}

/// Row y of the grid copies range y, in the widest words for which both its ends are aligned.
__global__ void copy_ranges(CopyList copies) {
  const auto* source = static_cast<const char*>(copies.sources[blockIdx.y]);
  auto* destination = static_cast<char*>(copies.destinations[blockIdx.y]);
  const std::size_t bytes = copies.sizes[blockIdx.y];
  const auto either =
      reinterpret_cast<std::uintptr_t>(source) | reinterpret_cast<std::uintptr_t>(destination);
  std::size_t done = 0;
  if (either % sizeof(uint4) == 0) {
    done = copy_words<uint4>(source, destination, bytes);
  } else if (either % sizeof(std::uint32_t) == 0) {
    done = copy_words<std::uint32_t>(source, destination, bytes);
  } else if (either % sizeof(std::uint16_t) == 0) {
    done = copy_words<std::uint16_t>(source, destination, bytes);
  }
  copy_words<char>(source + done, destination + done, bytes - done);
}

}  // namespace

cudaError_t launch_copies(const CopyList& copies, const LaunchTarget& target) {
  if (copies.count == 0) return cudaSuccess;
  std::size_t longest = 0;
  for (int i = 0; i < copies.count; ++i) longest = std::max(longest, copies.sizes[i]);
  return launch<CopyList>(copy_ranges, target, (longest + sizeof(uint4) - 1) / sizeof(uint4),
                          static_cast<unsigned>(copies.count), kThreads, 0, copies);
}

}  // namespace troupe::gpu
