#pragma once

#include <cublas_v2.h>

#include <cstddef>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The cuBLAS functions that are used. The library is loaded when the first model is created, so that a
/// program that has one starts on machines without CUDA.
struct BlasLibrary {
  cublasStatus_t (*create)(cublasHandle_t* handle) = nullptr;
  cublasStatus_t (*destroy)(cublasHandle_t handle) = nullptr;
  cublasStatus_t (*set_stream)(cublasHandle_t handle, cudaStream_t stream) = nullptr;
  cublasStatus_t (*set_workspace)(cublasHandle_t handle, void* workspace, std::size_t bytes) = nullptr;
  cublasStatus_t (*set_math_mode)(cublasHandle_t handle, cublasMath_t mode) = nullptr;
  cublasStatus_t (*gemm)(cublasHandle_t handle, cublasOperation_t a_order, cublasOperation_t b_order, int m,
                         int n, int k, const void* alpha, const void* a, cudaDataType a_type, int a_stride,
                         const void* b, cudaDataType b_type, int b_stride, const void* beta, void* c,
                         cudaDataType c_type, int c_stride, cublasComputeType_t compute,
                         cublasGemmAlgo_t algorithm) = nullptr;
};

/// Errc::unavailable if it is not found, or lacks a function.
core::Result<BlasLibrary> load_blas_library();

}  // namespace troupe::apps::gpt
