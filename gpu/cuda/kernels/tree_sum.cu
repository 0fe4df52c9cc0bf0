#include "gpu/cuda/kernels/packs.cuh"

namespace troupe::gpu {
namespace {

constexpr std::size_t kSharedBytes = std::size_t{48} << 10;  // every block has it without asking

__device__ __forceinline__ float* shared_floats() {
#ifdef __CUDACC__
  extern __shared__ float floats[];
  return floats;
#else
  return static_cast<float*>(troupe::cuda_emulation::dynamic_shared_memory());
#endif
}

/// Runs the program on a pack of each slot, in shared memory because a program addresses slots by number,
/// which registers do not support. Nothing is shared: every thread has its own places, next to those of its
/// neighbours.
struct TreeSumBody {
  const TreeProgram& program;
  float* own;

  __device__ __forceinline__ float& partial(int slot, int i) const {
    return own[(slot * kPackElements + i) * static_cast<int>(blockDim.x)];
  }

  /// Slots are read where they are added up: there may be too many for registers.
  template <int n>
  struct InTurn {};

  template <int n>
  __device__ __forceinline__ InTurn<n> fetch(std::size_t) const {
    return {};
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const InTurn<n>&) const {
    for (int slot = 0; slot < program.slot_count; ++slot) {
      const auto values = load<n>(program.slot(slot), first);
      for (int i = 0; i < n; ++i) partial(slot, i) = values.value[i];
    }
    for (int step = 0; step < program.step_count; ++step) {
      const int destination = program.destinations[step];
      const int source = program.sources[step];
      for (int i = 0; i < n; ++i) partial(destination, i) += partial(source, i);
    }
    Floats<n> sum;
    for (int i = 0; i < n; ++i) sum.value[i] = partial(0, i) * program.factor;
    store(program.output, first, sum);
  }
};

__global__ void tree_sum(Shape shape, TreeProgram program) {
  TreeSumBody body{program, shared_floats() + threadIdx.x};
  for_each_pack(shape, body);
}

Shape shape_of_sum(const TreeProgram& program, std::size_t count) {
  Shape shape = shape_of(count, {program.output});
  for (int slot = 0; slot < program.slot_count; ++slot) {
    const Shape both = shape_of(count, {program.output, program.slot(slot)});
    // All slots must agree with the first on where packs begin.
    if (slot == 0) shape = both;
    if (both.packs != shape.packs || both.head != shape.head) return {count, 0, 0};
  }
  return shape;
}

}  // namespace

cudaError_t launch_tree_sum(const TreeProgram& program, std::size_t count, const LaunchTarget& target) {
  if (count == 0) return cudaSuccess;
  const Shape shape = shape_of_sum(program, count);
  const std::size_t thread_bytes =
      static_cast<std::size_t>(program.slot_count) * kPackElements * sizeof(float);
  int threads = 256;
  while (threads > 4 && thread_bytes * static_cast<std::size_t>(threads) > kSharedBytes) threads /= 2;
  return launch<Shape, TreeProgram>(tree_sum, target, std::max(shape.packs, shape.singles()), 1, threads,
                                    thread_bytes * static_cast<std::size_t>(threads), shape, program);
}

}  // namespace troupe::gpu
