#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffer.hpp"
#include "gpu/elements.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {

/// The kernels of one stream of a device with memory of its own: gpu/kernels.hpp documents each kernel, its
/// preconditions, and what must stay alive.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

  virtual void copy(ConstBufferView source, BufferView destination) = 0;
  virtual void zero(BufferView destination) = 0;
  virtual void pack(std::span<const ConstBufferView> ranges, BufferView flat) = 0;
  virtual void unpack(ConstBufferView flat, std::span<const BufferView> ranges) = 0;
  virtual void pack(std::span<const ConstElements> ranges, Elements flat) = 0;
  virtual void unpack(ConstElements flat, std::span<const Elements> ranges) = 0;
  virtual void fill(Elements destination, float value) = 0;
  virtual void cast(ConstElements source, Elements destination) = 0;
  virtual void round_to(core::DType narrow, Elements values) = 0;
  virtual void round_to_mx(core::DType element, ConstElements source, Elements destination) = 0;
  virtual void pack_mx(core::DType element, ConstElements source, BufferView packed) = 0;
  virtual void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part,
                         Elements destination) = 0;
  virtual void scale(Elements values, float factor) = 0;
  virtual void accumulate(ConstElements source, Elements destination) = 0;
  virtual void tree_sum(const TreeSum& sum) = 0;
  virtual void add_squares(ConstElements values, BufferView sum) = 0;
  virtual void add_square_sums(ConstBufferView parts, BufferView into) = 0;
  virtual void raise_to_largest(ConstElements values, BufferView largest) = 0;
  virtual void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum) = 0;
  virtual void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
                         AdamMoments moments) = 0;
  virtual void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment) = 0;
  virtual void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
                         BufferView momentum, BufferView scratch) = 0;
};

}  // namespace troupe::gpu
