#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/exact_sum.hpp"
#include "core/plan/lanes.hpp"
#include "gpu/buffer.hpp"
#include "gpu/elements.hpp"
#include "gpu/optimizer_options.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// The kernels. Each comes twice: with a StreamView it is enqueued, and everything its arguments refer to
/// must stay alive until the stream has passed it; without one it runs at once, on memory of the host. On the
/// stream of a device with memory of its own the arguments are of that memory; copy() also takes memory of
/// the host on either side, and should find it pinned (Device::allocate_staging).
///
/// All arithmetic is fp32 with every operation rounded (no fused multiply-add), elements narrower than fp32
/// are widened exactly and rounded once, to nearest even, when they are stored. So a kernel gives the same
/// bits on a range as on any pieces of it, and on any machine. NaN stays NaN; which NaN is not said. dtypes
/// are the floating ones up to 32 bits. Wrong sizes and dtypes are programming errors.

void copy(ConstBufferView source, BufferView destination);
void zero(BufferView destination);
void fill(Elements destination, float value);
/// The ranges one after another, without gaps, in `flat`; and from there. No range overlaps another.
void pack(std::span<const ConstBufferView> ranges, BufferView flat);
void unpack(ConstBufferView flat, std::span<const BufferView> ranges);
/// The same of elements, which become those of the other side's dtype, as by cast(). All ranges have one.
void pack(std::span<const ConstElements> ranges, Elements flat);
void unpack(ConstElements flat, std::span<const Elements> ranges);
/// The ranges do not overlap, unless both dtypes are of one size and the ranges are the same.
void cast(ConstElements source, Elements destination);
/// Each value becomes the nearest one that `narrow` has, and keeps its dtype.
void round_to(core::DType narrow, Elements values);
/// Each value becomes the one that the microscaling block (core/mx_blocks.hpp) of it and its neighbours holds
/// of it: what pack_mx() and unpack_mx() would leave. Blocks begin with the first value, and the last one may
/// be short. `element` is f8_e4m3 or f8_e5m2; the destination is f32 or bf16, which hold all such values, and
/// may be the source itself.
///
/// The scale of a block is the specification's, 2^(floor(log2 a) - 8) for f8_e4m3 and 2^(floor(log2 a) - 15)
/// for f8_e5m2, with a the largest magnitude, but not below 2^-124 and 2^-117, so that bf16 holds what comes
/// of it. Elements are rounded to nearest even, and what is above the largest element becomes that. A block
/// with NaN or Inf has the scale's NaN, 255, and is NaN throughout. What was rounded once is not changed by
/// another time.
void round_to_mx(core::DType element, ConstElements source, Elements destination);
/// `packed` is the elements of the blocks, a byte each, and after all of them the scales. Of whole blocks.
void pack_mx(core::DType element, ConstElements source, BufferView packed);
/// `packed` is several of what pack_mx() makes, of `part` elements each, which is whole blocks.
void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part, Elements destination);
/// values *= factor
void scale(Elements values, float factor);
/// destination += source
void accumulate(ConstElements source, Elements destination);

/// Finishes a sum in the fixed order of its tree (core/plan/lanes.hpp): runs `steps` on fp32 copies of the
/// slots and stores slot 0, multiplied by `factor`, in `output`. The slots themselves keep their values. The
/// output may be one of the slots, when their dtypes are the same.
struct TreeSum {
  std::vector<ConstElements> slots;
  std::span<const core::TreeStep> steps;
  float factor = 1;
  Elements output;
};
void tree_sum(const TreeSum& sum);

/// Adds to the square sum; `sum` is one core::ExactSquareSum.
void add_squares(ConstElements values, BufferView sum);
/// into += the sum of all parts; both are whole core::ExactSquareSum.
void add_square_sums(ConstBufferView parts, BufferView into);
/// Raises `largest`, one u32, to the largest magnitude as the bits of a float (which order as the numbers do;
/// NaN is above Inf).
void raise_to_largest(ConstElements values, BufferView largest);

/// What all optimizers step: fp32 master values from gradients of any dtype, and in the same pass the rounded
/// parameter that the model reads.
struct ParameterStep {
  ConstElements gradient;
  float gradient_factor = 1;  ///< multiplies the gradient first, to clip it
  BufferView master;          ///< fp32
  Elements parameter;         ///< where the new master values are copied to; empty for nowhere
};

/// `momentum` is the fp32 momentum buffer, which begins with zeros; empty when options.momentum is 0.
void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum);

struct AdamMoments {
  BufferView first;   ///< fp32, begins with zeros
  BufferView second;  ///< fp32, begins with zeros
};
/// `step` counts from 1.
void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments);

/// `moment` is fp32 and begins with zeros.
void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment);

/// Of a whole matrix; `momentum` is fp32 and begins with zeros, `scratch` has muon_scratch_bytes() at least
/// and is anything afterwards. With S the shorter side of the matrix and X its direction, transposed when it
/// has more rows than columns: the norm is the root of a sum in double, of each row of X in order and then of
/// the rows in order; elements of products are sums in the order of the summed index, which begin with 0. So
/// a matrix has the same bits wherever it is stepped.
void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
               BufferView momentum, BufferView scratch);
std::size_t muon_scratch_bytes(MatrixShape shape);

void copy(ConstBufferView source, BufferView destination, StreamView stream);
void zero(BufferView destination, StreamView stream);
void pack(std::vector<ConstBufferView> ranges, BufferView flat, StreamView stream);
void unpack(ConstBufferView flat, std::vector<BufferView> ranges, StreamView stream);
void pack(std::vector<ConstElements> ranges, Elements flat, StreamView stream);
void unpack(ConstElements flat, std::vector<Elements> ranges, StreamView stream);
void fill(Elements destination, float value, StreamView stream);
void cast(ConstElements source, Elements destination, StreamView stream);
void round_to(core::DType narrow, Elements values, StreamView stream);
void round_to_mx(core::DType element, ConstElements source, Elements destination, StreamView stream);
void pack_mx(core::DType element, ConstElements source, BufferView packed, StreamView stream);
void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part, Elements destination,
               StreamView stream);
void scale(Elements values, float factor, StreamView stream);
void accumulate(ConstElements source, Elements destination, StreamView stream);
void tree_sum(TreeSum sum, StreamView stream);
void add_squares(ConstElements values, BufferView sum, StreamView stream);
void add_square_sums(ConstBufferView parts, BufferView into, StreamView stream);
void raise_to_largest(ConstElements values, BufferView largest, StreamView stream);
void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum,
              StreamView stream);
void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments, StreamView stream);
void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment,
               StreamView stream);
void muon_step(const MuonOptions& options, MatrixShape shape, const ParameterStep& parameter,
               BufferView momentum, BufferView scratch, StreamView stream);

}  // namespace troupe::gpu
