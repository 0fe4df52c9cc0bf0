#include "apps/gpt/kernels/blas.hpp"

#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

namespace {

// What NVIDIA recommends for Hopper; older GPUs need less.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

template <class E>
constexpr cudaDataType kType = std::is_same_v<E, float> ? CUDA_R_32F : CUDA_R_16BF;

}  // namespace

/// c (+)= a * b as BLAS sees it: columns are contiguous, so a row-major matrix is the transposed one.
struct Blas::Product {
  cublasOperation_t a_order, b_order;
  std::size_t m, n, k;
  const void* a;
  std::size_t a_stride;
  const void* b;
  std::size_t b_stride;
  cudaDataType factors;
  void* c = nullptr;
  cudaDataType c_type = CUDA_R_32F;
  std::size_t c_stride;
  Write write = Write::overwrite;
};

core::Result<std::unique_ptr<Blas>> Blas::create(gpu::Device& device, gpu::StreamView stream, bool tf32) {
  BlasLibrary library = TRY(load_blas_library());
  auto workspace = TRY(device.allocate(kWorkspaceBytes));
  std::unique_ptr<Blas> blas(new Blas(library, stream, std::move(workspace), tf32));
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const auto try_next = [&](auto call) { status = status == CUBLAS_STATUS_SUCCESS ? call() : status; };
  // The workspace comes after the stream: setting the stream resets it.
  const bool is_native = stream->run_native("set up cuBLAS", [&](void* native) {
    try_next([&] { return library.create(&blas->handle_); });
    try_next([&] { return library.set_stream(blas->handle_, static_cast<cudaStream_t>(native)); });
    try_next(
        [&] { return library.set_workspace(blas->handle_, blas->workspace_.view().data, kWorkspaceBytes); });
    try_next([&] {
      return library.set_math_mode(blas->handle_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    });
    return 0;
  });
  CHECK(is_native, "cuBLAS runs on streams of CUDA");
  if (status != CUBLAS_STATUS_SUCCESS || blas->handle_ == nullptr) {
    return core::fail(
        core::Errc::unavailable,
        "expected cuBLAS to start, but it returned status {}; check the driver's version and the free "
        "memory",
        static_cast<int>(status));
  }
  return blas;
}

Blas::Blas(BlasLibrary library, gpu::StreamView stream, gpu::Buffer workspace, bool tf32)
    : library_(library), stream_(stream), workspace_(std::move(workspace)), tf32_(tf32) {}

Blas::~Blas() {
  if (handle_ == nullptr) return;
  bool is_destroyed = false;
  // With the device current: cuBLAS uses the one that is.
  stream_->run_native("end cuBLAS", [&](void*) {
    (void)library_.destroy(handle_);
    is_destroyed = true;
    return 0;
  });
  // A device that has failed runs nothing more.
  if (!is_destroyed) (void)library_.destroy(handle_);
}

void Blas::multiply(const Product& p) {
  const float alpha = 1;
  const float beta = p.write == Write::accumulate ? 1.0F : 0.0F;
  const auto compute = tf32_ && p.factors == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  const auto size = [](std::size_t value) { return static_cast<int>(value); };
  stream_->run_native("matrix product", [&](void*) {
    const cublasStatus_t status =
        library_.gemm(handle_, p.a_order, p.b_order, size(p.m), size(p.n), size(p.k), &alpha, p.a, p.factors,
                      size(p.a_stride), p.b, p.factors, size(p.b_stride), &beta, p.c, p.c_type,
                      size(p.c_stride), compute, CUBLAS_GEMM_DEFAULT);
    return static_cast<int>(status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown);
  });
}

template <class E>
Blas::Product Blas::forward_product(LinearShape shape, const E* x, const E* weight) {
  return {.a_order = CUBLAS_OP_T,
          .b_order = CUBLAS_OP_N,
          .m = shape.out,
          .n = shape.rows,
          .k = shape.in,
          .a = weight,
          .a_stride = shape.weight_row(),
          .b = x,
          .b_stride = shape.x_row(),
          .factors = kType<E>,
          .c_stride = shape.y_row()};
}

template <class E>
void Blas::linear_forward(LinearShape shape, const E* x, const E* weight, E* y, Write write) {
  Product product = forward_product(shape, x, weight);
  product.c = y;
  product.c_type = kType<E>;
  product.write = write;
  multiply(product);
}

template <class E>
void Blas::linear_forward_wide(LinearShape shape, const E* x, const E* weight, float* y) {
  Product product = forward_product(shape, x, weight);
  product.c = y;
  multiply(product);
}

template <class E>
void Blas::linear_backward_input(LinearShape shape, const E* d_y, const E* weight, E* d_x, Write write) {
  multiply({.a_order = CUBLAS_OP_N,
            .b_order = CUBLAS_OP_N,
            .m = shape.in,
            .n = shape.rows,
            .k = shape.out,
            .a = weight,
            .a_stride = shape.weight_row(),
            .b = d_y,
            .b_stride = shape.y_row(),
            .factors = kType<E>,
            .c = d_x,
            .c_type = kType<E>,
            .c_stride = shape.x_row(),
            .write = write});
}

template <class E>
void Blas::linear_backward_weight(LinearShape shape, const E* d_y, const E* x, float* d_weight) {
  multiply({.a_order = CUBLAS_OP_N,
            .b_order = CUBLAS_OP_T,
            .m = shape.in,
            .n = shape.out,
            .k = shape.rows,
            .a = x,
            .a_stride = shape.x_row(),
            .b = d_y,
            .b_stride = shape.y_row(),
            .factors = kType<E>,
            .c = d_weight,
            .c_type = CUDA_R_32F,
            .c_stride = shape.weight_row(),
            .write = Write::accumulate});
}

template void Blas::linear_forward<float>(LinearShape, const float*, const float*, float*, Write);
template void Blas::linear_forward<Bf16>(LinearShape, const Bf16*, const Bf16*, Bf16*, Write);
template void Blas::linear_forward_wide<float>(LinearShape, const float*, const float*, float*);
template void Blas::linear_forward_wide<Bf16>(LinearShape, const Bf16*, const Bf16*, float*);
template void Blas::linear_backward_input<float>(LinearShape, const float*, const float*, float*, Write);
template void Blas::linear_backward_input<Bf16>(LinearShape, const Bf16*, const Bf16*, Bf16*, Write);
template void Blas::linear_backward_weight<float>(LinearShape, const float*, const float*, float*);
template void Blas::linear_backward_weight<Bf16>(LinearShape, const Bf16*, const Bf16*, float*);

}  // namespace troupe::apps::gpt
