#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/device_kernels.hpp"

namespace troupe::gpu {

class CudaStream;
struct LaunchTarget;

/// The kernels on one CUDA stream. gpu/cuda/kernels/launch.hpp declares what the kernels' compiler builds.
class CudaKernels final : public DeviceKernels {
 public:
  explicit CudaKernels(CudaStream& stream) : stream_(stream) {}

  void copy(ConstBufferView source, BufferView destination) override;
  void zero(BufferView destination) override;
  void pack(std::span<const ConstBufferView> ranges, BufferView flat) override;
  void unpack(ConstBufferView flat, std::span<const BufferView> ranges) override;
  void pack(std::span<const ConstElements> ranges, Elements flat) override;
  void unpack(ConstElements flat, std::span<const Elements> ranges) override;
  void fill(Elements destination, float value) override;
  void cast(ConstElements source, Elements destination) override;
  void round_to(core::DType narrow, Elements values) override;
  void round_to_mx(core::DType element, ConstElements source, Elements destination) override;
  void pack_mx(core::DType element, ConstElements source, BufferView packed) override;
  void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part,
                 Elements destination) override;
  void scale(Elements values, float factor) override;
  void accumulate(ConstElements source, Elements destination) override;
  /// More than 256 slots are summed in several passes, whose partial sums are in memory of the device's pool
  /// until the last one has ended: fp32, one for each 128 slots at most.
  void tree_sum(const TreeSum& sum) override;
  void add_squares(ConstElements values, BufferView sum) override;
  void add_square_sums(ConstBufferView parts, BufferView into) override;
  void raise_to_largest(ConstElements values, BufferView largest) override;
  void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) override;
  void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
                 AdamMoments moments) override;
  void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment) override;
  void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
                 BufferView momentum, BufferView scratch) override;

 private:
  /// Calls launch(target), which returns CUDA's status.
  template <class Launch>
  void run(std::string_view label, const Launch& launch);

  CudaStream& stream_;
};

}  // namespace troupe::gpu
