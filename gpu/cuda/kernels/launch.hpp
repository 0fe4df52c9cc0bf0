#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/occupancy.hpp"
#include "gpu/float_formats.hpp"
#include "gpu/muon_scratch.hpp"
#include "gpu/optimizer_arithmetic.hpp"

namespace troupe::gpu {

/// The interface for the kernels' own compiler: plain pointers and counts. Every function enqueues kernels
/// and returns CUDA's status; arguments are already checked (gpu/kernel_checks.hpp) and are on the device.

/// Where kernels are enqueued.
struct LaunchTarget {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
  Occupancy* occupancy = nullptr;
  bool has_fast_doubles = false;  ///< as CudaDeviceInfo
};

/// Elements of a floating format, whose count is passed separately. Null for none.
struct DeviceArray {
  void* data = nullptr;
  formats::Format format = formats::Format::f32;
};

cudaError_t launch_fill(DeviceArray destination, float value, std::size_t count, const LaunchTarget& target);
cudaError_t launch_cast(DeviceArray source, DeviceArray destination, std::size_t count,
                        const LaunchTarget& target);
cudaError_t launch_round(formats::Format narrow, DeviceArray values, std::size_t count,
                         const LaunchTarget& target);
cudaError_t launch_round_to_mx(formats::Format element, DeviceArray source, DeviceArray destination,
                               std::size_t count, const LaunchTarget& target);
/// The format of packed blocks is that of their elements; `part` is as in unpack_mx().
cudaError_t launch_pack_mx(DeviceArray source, DeviceArray packed, std::size_t count,
                           const LaunchTarget& target);
cudaError_t launch_unpack_mx(DeviceArray packed, std::size_t part, DeviceArray destination, std::size_t count,
                             const LaunchTarget& target);
cudaError_t launch_scale(DeviceArray values, float factor, std::size_t count, const LaunchTarget& target);
cudaError_t launch_accumulate(DeviceArray source, DeviceArray destination, std::size_t count,
                              const LaunchTarget& target);

struct OptimizerArrays {
  DeviceArray gradient;
  float gradient_factor = 1;
  DeviceArray master;
  DeviceArray parameter;  ///< null for none
  DeviceArray first;      ///< momentum or first moment; null for none
  DeviceArray second;
};
cudaError_t launch_sgd_step(SgdFactors factors, const OptimizerArrays& arrays, std::size_t count,
                            const LaunchTarget& target);
cudaError_t launch_adam_step(AdamFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target);
cudaError_t launch_lion_step(LionFactors factors, const OptimizerArrays& arrays, std::size_t count,
                             const LaunchTarget& target);
cudaError_t launch_muon_step(const MuonFactors& factors, MatrixShape matrix, int steps,
                             const OptimizerArrays& arrays, MuonScratch scratch, const LaunchTarget& target);

/// A tree sum as a kernel parameter.
struct TreeProgram {
  static constexpr int kSlots = 256;

  const void* slots[kSlots] = {};
  formats::Format formats[kSlots] = {};    ///< of the slots
  std::uint8_t destinations[kSlots] = {};  ///< of the steps, which are fewer than the slots
  std::uint8_t sources[kSlots] = {};
  int slot_count = 0;
  int step_count = 0;
  float factor = 1;
  DeviceArray output;

  TROUPE_HOST_DEVICE DeviceArray slot(int index) const {
    return {const_cast<void*>(slots[index]), formats[index]};
  }
};
cudaError_t launch_tree_sum(const TreeProgram& program, std::size_t count, const LaunchTarget& target);

/// `sum` are the words of a core::ExactSquareSum.
cudaError_t launch_add_squares(DeviceArray values, std::size_t count, std::int64_t* sum,
                               const LaunchTarget& target);
cudaError_t launch_add_square_sums(const std::int64_t* parts, std::size_t part_count, std::int64_t* into,
                                   const LaunchTarget& target);
cudaError_t launch_raise_to_largest(DeviceArray values, std::size_t count, std::uint32_t* largest,
                                    const LaunchTarget& target);

/// What one launch copies or casts.
struct PieceList {
  static constexpr int kMost = 128;

  const void* sources[kMost] = {};
  void* destinations[kMost] = {};
  std::size_t sizes[kMost] = {};  ///< bytes for copies, elements for casts
  int count = 0;
};

struct CopyList : PieceList {};
cudaError_t launch_copies(const CopyList& copies, const LaunchTarget& target);

/// The casts of one launch, all between the same formats.
struct CastList : PieceList {
  formats::Format from = formats::Format::f32;
  formats::Format to = formats::Format::f32;
};
cudaError_t launch_casts(const CastList& casts, const LaunchTarget& target);

}  // namespace troupe::gpu
