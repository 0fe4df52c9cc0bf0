#include <utility>

#include "gpu/cuda/kernels/packs.cuh"

namespace troupe::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 16;  // each of kTile * kTile threads has one element of a tile

template <class Body>
__global__ void over_elements(Shape shape, Body body) {
  for_each_pack(shape, body);
}

template <class Body>
cudaError_t launch_over_elements(const Shape& shape, const Body& body, const LaunchTarget& target) {
  return launch<Shape, Body>(over_elements<Body>, target, std::max(shape.packs, shape.singles()), 1, kThreads,
                             0, shape, body);
}

DeviceArray floats_of(float* values) {
  return {values, formats::Format::f32};
}

/// Updates the momentum and writes the direction.
struct Direction {
  MuonFactors factors;
  OptimizerArrays arrays;
  DeviceArray out;

  template <int n>
  struct Packs {
    Fetched<n> gradient, velocity;
  };

  template <int n>
  __device__ __forceinline__ Packs<n> fetch(std::size_t first) const {
    return {fetched<n>(arrays.gradient, first), fetched<n>(arrays.first, first)};
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Packs<n>& packs) const {
    auto gradient = widened(arrays.gradient.format, packs.gradient);
    auto velocity = widened(arrays.first.format, packs.velocity);
    for (int i = 0; i < n; ++i) {
      const float clipped = gradient.value[i] * arrays.gradient_factor;
      gradient.value[i] = muon_direction(factors, clipped, velocity.value[i]);
    }
    store(arrays.first, first, velocity);
    store(out, first, gradient);
  }
};

struct Apply {
  MuonFactors factors;
  OptimizerArrays arrays;
  DeviceArray update;

  template <int n>
  struct Packs {
    Fetched<n> master, update;
  };

  template <int n>
  __device__ __forceinline__ Packs<n> fetch(std::size_t first) const {
    return {fetched<n>(arrays.master, first), fetched<n>(update, first)};
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Packs<n>& packs) const {
    auto values = widened(arrays.master.format, packs.master);
    const auto pack = widened(update.format, packs.update);
    for (int i = 0; i < n; ++i) {
      values.value[i] = values.value[i] * factors.kept + factors.minus_step * pack.value[i];
    }
    store(arrays.master, first, values);
    if (arrays.parameter.data != nullptr) store(arrays.parameter, first, values);
  }
};

struct Divide {
  MuonFactors factors;
  DeviceArray values;
  const double* squares;

  template <int n>
  __device__ __forceinline__ Fetched<n> fetch(std::size_t first) const {
    return fetched<n>(values, first);
  }
  template <int n>
  __device__ __forceinline__ void finish(std::size_t first, const Fetched<n>& pack) const {
    const float divisor = muon_divisor(factors, *squares);
    auto divided = widened(values.format, pack);
    for (int i = 0; i < n; ++i) divided.value[i] /= divisor;
    store(values, first, divided);
  }
};

__global__ void square_rows(const float* values, std::size_t rows, std::size_t columns, double* squares) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t row = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < rows;
       row += threads) {
    double sum = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = values[row * columns + column];
      sum += value * value;
    }
    squares[row] = sum;
  }
}

/// Leaves the sum in the first element.
__global__ void add_rows(double* squares, std::size_t rows) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  double sum = 0;
  for (std::size_t row = 0; row < rows; ++row) sum += squares[row];
  squares[0] = sum;
}

__global__ void transpose(std::size_t rows, std::size_t columns, const float* from, float* to) {
  __shared__ float tile[kTile * (kTile + 1)];
  const std::size_t across = (columns + kTile - 1) / kTile;
  const std::size_t tiles = across * ((rows + kTile - 1) / kTile);
  const std::size_t y = threadIdx.x / kTile;
  const std::size_t x = threadIdx.x % kTile;
  for (std::size_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const std::size_t i = index / across * kTile;
    const std::size_t j = index % across * kTile;
    if (i + y < rows && j + x < columns) tile[y * (kTile + 1) + x] = from[(i + y) * columns + j + x];
    __syncthreads();
    if (i + x < rows && j + y < columns) to[(j + y) * rows + i + x] = tile[x * (kTile + 1) + y];
    __syncthreads();
  }
}

/// Like the host's: gpu/host/kernels/muon.cpp.
struct Product {
  std::size_t m = 0, k = 0, n = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  const float* base = nullptr;
  float base_factor = 0;
  float factor = 1;

  __host__ __device__ std::size_t across() const { return (n + kTile - 1) / kTile; }
  __host__ __device__ std::size_t tiles() const { return across() * ((m + kTile - 1) / kTile); }
};

/// A thread sums its element in the order of k; tiles of the factors go through shared memory.
__global__ void multiply(Product p) {
  __shared__ float a[kTile * kTile];
  __shared__ float b[kTile * kTile];
  const std::size_t y = threadIdx.x / kTile;
  const std::size_t x = threadIdx.x % kTile;
  for (std::size_t index = blockIdx.x; index < p.tiles(); index += gridDim.x) {
    const std::size_t i = index / p.across() * kTile + y;
    const std::size_t j = index % p.across() * kTile + x;
    float sum = 0;
    for (std::size_t k = 0; k < p.k; k += kTile) {
      if (i < p.m && k + x < p.k) a[threadIdx.x] = p.a[i * p.k + k + x];
      if (j < p.n && k + y < p.k) b[threadIdx.x] = p.b[(k + y) * p.n + j];
      __syncthreads();
      const std::size_t depth = p.k - k < kTile ? p.k - k : kTile;
      if (i < p.m && j < p.n) {
        for (std::size_t d = 0; d < depth; ++d) sum += a[y * kTile + d] * b[d * kTile + x];
      }
      __syncthreads();
    }
    if (i >= p.m || j >= p.n) continue;
    const std::size_t at = i * p.n + j;
    p.out[at] = p.base == nullptr ? sum : p.base_factor * p.base[at] + p.factor * sum;
  }
}

/// Enqueues kernels until one fails.
class Launches {
 public:
  explicit Launches(const LaunchTarget& target) : target_(target) {}

  template <class Body>
  void over_elements(const Shape& shape, const Body& body) {
    if (status_ == cudaSuccess) status_ = launch_over_elements(shape, body, target_);
  }
  void transpose(std::size_t rows, std::size_t columns, const float* from, float* to) {
    const std::size_t tiles = ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
    run<std::size_t, std::size_t, const float*, float*>(gpu::transpose, tiles * kThreads, rows, columns, from,
                                                        to);
  }
  void multiply(const Product& product) { run<Product>(gpu::multiply, product.tiles() * kThreads, product); }
  void add_squares(const float* values, std::size_t rows, std::size_t columns, double* squares) {
    run<const float*, std::size_t, std::size_t, double*>(square_rows, rows, values, rows, columns, squares);
    run<double*, std::size_t>(add_rows, 1, squares, rows);
  }
  cudaError_t status() const { return status_; }

 private:
  template <class... Parameters>
  void run(void (*kernel)(Parameters...), std::size_t items, Parameters... parameters) {
    if (status_ == cudaSuccess)
      status_ = launch<Parameters...>(kernel, target_, items, 1, kThreads, 0, parameters...);
  }

  const LaunchTarget& target_;
  cudaError_t status_ = cudaSuccess;
};

void newton_schulz(const MuonFactors& factors, MuonScratch& s, Launches& launches) {
  const std::size_t S = s.shorter, L = s.longer;
  launches.transpose(S, L, s.x, s.other);
  launches.multiply({.m = S, .k = L, .n = S, .a = s.x, .b = s.other, .out = s.gram});
  launches.multiply({.m = S,
                     .k = S,
                     .n = S,
                     .a = s.gram,
                     .b = s.gram,
                     .out = s.polynomial,
                     .base = s.gram,
                     .base_factor = factors.cubic,
                     .factor = factors.quintic});
  launches.multiply({.m = S,
                     .k = S,
                     .n = L,
                     .a = s.polynomial,
                     .b = s.x,
                     .out = s.other,
                     .base = s.x,
                     .base_factor = factors.linear});
  std::swap(s.x, s.other);
}

}  // namespace

cudaError_t launch_muon_step(const MuonFactors& factors, MatrixShape matrix, int steps,
                             const OptimizerArrays& arrays, MuonScratch s, const LaunchTarget& target) {
  const std::size_t count = matrix.count();
  if (count == 0) return cudaSuccess;
  const bool is_tall = matrix.rows > matrix.columns;
  Launches launches(target);
  const DeviceArray direction = floats_of(is_tall ? s.other : s.x);
  launches.over_elements(shape_of(count, {arrays.gradient, arrays.first, direction}),
                         Direction{factors, arrays, direction});
  if (is_tall) launches.transpose(matrix.rows, matrix.columns, s.other, s.x);
  launches.add_squares(s.x, s.shorter, s.longer, s.squares);
  launches.over_elements(shape_of(count, {floats_of(s.x)}), Divide{factors, floats_of(s.x), s.squares});
  for (int step = 0; step < steps; ++step) newton_schulz(factors, s, launches);
  if (is_tall) {
    launches.transpose(matrix.columns, matrix.rows, s.x, s.other);
    std::swap(s.x, s.other);
  }
  const DeviceArray parameter = arrays.parameter.data != nullptr ? arrays.parameter : arrays.master;
  launches.over_elements(shape_of(count, {arrays.master, parameter, floats_of(s.x)}),
                         Apply{factors, arrays, floats_of(s.x)});
  return launches.status();
}

}  // namespace troupe::gpu
