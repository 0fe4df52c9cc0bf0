#include "apps/gpt/layers/matmul.hpp"

#include <cblas.h>
#include <sys/mman.h>

#include <type_traits>
#include <vector>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

namespace {

bool has_room(std::size_t bytes, int protection) {
  void* const room = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, bytes);
  return true;
}

/// Has OpenBLAS take the buffer that it keeps from its first product on. False: there is no room for it.
/// Threads that OpenBLAS began when it was loaded take one each, at any time: addresses must do for all.
bool take_buffer(int threads) {
  constexpr std::size_t kBytes = (std::size_t{128} << 20) + (std::size_t{1} << 20);
  if (!has_room(static_cast<std::size_t>(threads) * kBytes, PROT_NONE)) return false;
  if (!has_room(kBytes, PROT_READ | PROT_WRITE)) return false;
  // Small products are computed without the buffer.
  constexpr std::size_t kSide = 512;
  std::vector<float> values(3 * kSide * kSide, 0.0F);
  multiply<float>({.m = kSide,
                   .n = kSide,
                   .k = kSide,
                   .a = {values.data(), kSide},
                   .b = {values.data() + kSide * kSide, kSide},
                   .c = values.data() + 2 * kSide * kSide,
                   .c_stride = kSide});
  return true;
}

}  // namespace

template <class T>
void multiply(const MatrixProduct<T>& p) {
  const auto order = [](const Matrix<T>& matrix) { return matrix.transposed ? CblasTrans : CblasNoTrans; };
  const auto size = [](std::size_t value) { return static_cast<blasint>(value); };
  const T beta = p.write == Write::accumulate ? T{1} : T{0};
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, order(p.a), order(p.b), size(p.m), size(p.n), size(p.k), p.scale, p.a.data,
                size(p.a.stride), p.b.data, size(p.b.stride), beta, p.c, size(p.c_stride));
  } else {
    cblas_dgemm(CblasRowMajor, order(p.a), order(p.b), size(p.m), size(p.n), size(p.k), p.scale, p.a.data,
                size(p.a.stride), p.b.data, size(p.b.stride), beta, p.c, size(p.c_stride));
  }
}

template <class T>
void linear_forward(LinearShape shape, const T* x, const T* weight, T* y, Write write) {
  multiply<T>({.m = shape.rows,
               .n = shape.out,
               .k = shape.in,
               .a = {x, shape.x_row()},
               .b = {weight, shape.weight_row(), true},
               .c = y,
               .c_stride = shape.y_row(),
               .write = write});
}

template <class T>
void linear_backward_input(LinearShape shape, const T* d_y, const T* weight, T* d_x, Write write) {
  multiply<T>({.m = shape.rows,
               .n = shape.in,
               .k = shape.out,
               .a = {d_y, shape.y_row()},
               .b = {weight, shape.weight_row()},
               .c = d_x,
               .c_stride = shape.x_row(),
               .write = write});
}

template <class T>
void linear_backward_weight(LinearShape shape, const T* d_y, const T* x, T* d_weight) {
  multiply<T>({.m = shape.out,
               .n = shape.in,
               .k = shape.rows,
               .a = {d_y, shape.y_row(), true},
               .b = {x, shape.x_row()},
               .c = d_weight,
               .c_stride = shape.weight_row(),
               .write = Write::accumulate});
}

core::Result<void> prepare_blas() {
  static const int threads = openblas_get_num_threads();
  openblas_set_num_threads(1);
  static const bool has_buffer = take_buffer(threads);  // it is the process's
  if (has_buffer) return {};
  return core::fail(
      core::Errc::out_of_memory,
      "OpenBLAS needs a buffer of 128 MiB for each of its threads ({}) and this process cannot get "
      "it; raise its limit (ulimit -v), or set OPENBLAS_NUM_THREADS=1",
      threads);
}

template decltype(multiply<float>) multiply<float>;
template decltype(multiply<double>) multiply<double>;
template decltype(linear_forward<float>) linear_forward<float>;
template decltype(linear_forward<double>) linear_forward<double>;
template decltype(linear_backward_input<float>) linear_backward_input<float>;
template decltype(linear_backward_input<double>) linear_backward_input<double>;
template decltype(linear_backward_weight<float>) linear_backward_weight<float>;
template decltype(linear_backward_weight<double>) linear_backward_weight<double>;

}  // namespace troupe::apps::gpt
