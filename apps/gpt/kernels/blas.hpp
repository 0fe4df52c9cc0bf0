#pragma once

#include <cublas_v2.h>

#include <memory>

#include "apps/gpt/kernels/blas_library.hpp"
#include "apps/gpt/kernels/element.cuh"
#include "apps/gpt/layers/matmul.hpp"
#include "core/result.hpp"
#include "gpu/device.hpp"

namespace troupe::apps::gpt {

/// Matrix products on one stream, in the shapes of apps/gpt/layers/matmul.hpp, with fp32 sums. The workspace
/// is fixed, so equal shapes are multiplied in the same way, and equal inputs give equal bits on GPUs of one
/// kind.
class Blas {
 public:
  /// `tf32` lets fp32 products round their factors to 10 bits. Device and stream must outlive it.
  static core::Result<std::unique_ptr<Blas>> create(gpu::Device& device, gpu::StreamView stream, bool tf32);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  template <class E>
  void linear_forward(LinearShape shape, const E* x, const E* weight, E* y, Write write = Write::overwrite);
  /// The same with sums that are not rounded to E.
  template <class E>
  void linear_forward_wide(LinearShape shape, const E* x, const E* weight, float* y);
  template <class E>
  void linear_backward_input(LinearShape shape, const E* d_y, const E* weight, E* d_x,
                             Write write = Write::overwrite);
  /// Always accumulates, in fp32.
  template <class E>
  void linear_backward_weight(LinearShape shape, const E* d_y, const E* x, float* d_weight);

 private:
  Blas(BlasLibrary library, gpu::StreamView stream, gpu::Buffer workspace, bool tf32);
  struct Product;
  /// The product of x and weight, without its destination.
  template <class E>
  static Product forward_product(LinearShape shape, const E* x, const E* weight);
  void multiply(const Product& product);

  BlasLibrary library_;
  gpu::StreamView stream_;
  gpu::Buffer workspace_;
  bool tf32_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace troupe::apps::gpt
