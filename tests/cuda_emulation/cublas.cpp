#include <cblas.h>
#include <cublas_v2.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "apps/gpt/kernels/blas_library.hpp"
#include "apps/gpt/kernels/element.cuh"
#include "tests/cuda_emulation/block.hpp"
#include "tests/cuda_emulation/emulated_machine.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace troupe::cuda_emulation {
namespace {

/// One matrix of a product, columns contiguous.
struct Operand {
  const void* data;
  cudaDataType type;
  int rows, columns, stride;

  std::size_t place(int row, int column) const {
    return static_cast<std::size_t>(column) * static_cast<std::size_t>(stride) +
           static_cast<std::size_t>(row);
  }

  /// The values in fp32, without gaps.
  std::vector<float> widened() const {
    std::vector<float> values;
    for (int column = 0; column < columns; ++column) {
      for (int row = 0; row < rows; ++row) {
        float value = 0;
        if (type == CUDA_R_32F) {
          value = static_cast<const float*>(data)[place(row, column)];
        } else {
          const std::uint32_t bits =
              std::uint32_t{static_cast<const std::uint16_t*>(data)[place(row, column)]} << 16;
          std::memcpy(&value, &bits, sizeof value);
        }
        values.push_back(value);
      }
    }
    return values;
  }

  void narrow(const std::vector<float>& values) const {
    std::size_t i = 0;
    for (int column = 0; column < columns; ++column) {
      for (int row = 0; row < rows; ++row) {
        const float value = values[i++];
        void* to = const_cast<void*>(data);
        if (type == CUDA_R_32F) {
          static_cast<float*>(to)[place(row, column)] = value;
        } else {
          static_cast<std::uint16_t*>(to)[place(row, column)] =
              apps::gpt::narrowed<apps::gpt::Bf16>(value).bits;
        }
      }
    }
  }
};

/// What real ones use of the runtime, whose current device is meant.
void use_current_device() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) Machine::instance().use_context(device);
}

cublasStatus_t create(cublasHandle_t* handle) {
  use_current_device();
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy(cublasHandle_t handle) {
  use_current_device();
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_stream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_workspace(cublasHandle_t /*handle*/, void* workspace, std::size_t bytes) {
  return Machine::instance().is_inside(workspace, bytes) ? CUBLAS_STATUS_SUCCESS
                                                         : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t set_math_mode(cublasHandle_t /*handle*/, cublasMath_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t gemm(cublasHandle_t handle, cublasOperation_t a_order, cublasOperation_t b_order, int m, int n,
                    int k, const void* alpha, const void* a, cudaDataType a_type, int a_stride, const void* b,
                    cudaDataType b_type, int b_stride, const void* beta, void* c, cudaDataType c_type,
                    int c_stride, cublasComputeType_t /*compute*/, cublasGemmAlgo_t /*algorithm*/) {
  if (handle == nullptr || handle->stream == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Operand left{a, a_type, a_order == CUBLAS_OP_N ? m : k, a_order == CUBLAS_OP_N ? k : m, a_stride};
  const Operand right{b, b_type, b_order == CUBLAS_OP_N ? k : n, b_order == CUBLAS_OP_N ? n : k, b_stride};
  const Operand sum{c, c_type, m, n, c_stride};
  for (const Operand* operand : {&left, &right, &sum}) {
    if (operand->stride < operand->rows) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto order = [](cublasOperation_t given) { return given == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; };
  const float factor = *static_cast<const float*>(alpha);
  const float keep = *static_cast<const float*>(beta);
  handle->stream->queue.enqueue("", {}, [=] {
    const auto of_left = left.widened();
    const auto of_right = right.widened();
    auto of_sum = keep == 0.0F ? std::vector<float>(static_cast<std::size_t>(m) * static_cast<std::size_t>(n))
                               : sum.widened();
    cblas_sgemm(CblasColMajor, order(a_order), order(b_order), m, n, k, factor, of_left.data(), left.rows,
                of_right.data(), right.rows, keep, of_sum.data(), m);
    sum.narrow(of_sum);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace troupe::cuda_emulation

namespace troupe::apps::gpt {

core::Result<BlasLibrary> load_blas_library() {
  namespace fake = cuda_emulation;
  return BlasLibrary{fake::create,        fake::destroy,       fake::set_stream,
                     fake::set_workspace, fake::set_math_mode, fake::gemm};
}

}  // namespace troupe::apps::gpt
