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
#include "gpu/slots.hpp"
#include "gpu/stream.hpp"

namespace troupe::gpu {

/// The kernels. Each has two forms: with a StreamView it is enqueued, and everything its arguments refer to
/// must stay alive until the stream has passed it; without one it runs immediately, on host memory. On the
/// stream of a device with its own memory the arguments are in that memory; copy() also accepts host memory
/// on either side, which should be pinned (Device::allocate_staging).
///
/// All arithmetic is fp32 with every operation rounded (no fused multiply-add); elements narrower than fp32
/// are widened exactly and rounded once, to nearest even, when they are stored. So a kernel gives the same
/// bits on a range as on any pieces of it, and on any machine. NaN stays NaN; which NaN is unspecified.
/// dtypes are the floating ones up to 32 bits. Wrong sizes and dtypes are programming errors.

void copy(ConstBufferView source, BufferView destination);
void zero(BufferView destination);
void fill(Elements destination, float value);
/// Copies the ranges into `flat`, consecutively and without gaps; and back. No range overlaps another.
void pack(std::span<const ConstBufferView> ranges, BufferView flat);
void unpack(ConstBufferView flat, std::span<const BufferView> ranges);
/// The same for elements, converted to the dtype of the other side as by cast(). All ranges have one dtype.
void pack(std::span<const ConstElements> ranges, Elements flat);
void unpack(ConstElements flat, std::span<const Elements> ranges);
/// The ranges do not overlap, unless both dtypes have the same size and the ranges are identical.
void cast(ConstElements source, Elements destination);
/// Rounds each value to the nearest one that `narrow` can represent; the dtype stays the same.
void round_to(core::DType narrow, Elements values);
/// Rounds each value to the one that its microscaling block (core/mx_blocks.hpp) can represent: the result of
/// pack_mx() followed by unpack_mx(). Blocks begin with the first value, and the last one may be short.
/// `element` is f8_e4m3 or f8_e5m2; the destination is f32 or bf16, which can represent all such values, and
/// may be the source itself.
///
/// The scale of a block is the specification's, 2^(floor(log2 a) - 8) for f8_e4m3 and 2^(floor(log2 a) - 15)
/// for f8_e5m2, with a the largest magnitude, but not below 2^-124 and 2^-117, so that bf16 can represent the
/// result. Elements are rounded to nearest even; values above the largest element become that element. A
/// block with NaN or Inf has the scale's NaN, 255, and is NaN throughout. Rounding twice gives the same as
/// rounding once.
void round_to_mx(core::DType element, ConstElements source, Elements destination);
/// `packed` holds the elements of the blocks, a byte each, followed by all scales. Whole blocks only.
void pack_mx(core::DType element, ConstElements source, BufferView packed);
/// `packed` holds several results of pack_mx(), each of `part` elements, which is a number of whole blocks.
void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part, Elements destination);
/// values *= factor
void scale(Elements values, float factor);
/// destination += source
void accumulate(ConstElements source, Elements destination);

/// Completes a sum in the fixed order of its tree (core/plan/lanes.hpp): runs `steps` on fp32 copies of the
/// slots and stores slot 0, multiplied by `factor`, in `output`. The slots themselves are unchanged. The
/// output may be one of the slots, if their dtypes are the same.
struct TreeSum {
  Slots slots;
  std::span<const core::TreeStep> steps;
  float factor = 1;
  Elements output;
};
void tree_sum(const TreeSum& sum);

/// Adds the values' squares to `sum`, one core::ExactSquareSum.
void add_squares(ConstElements values, BufferView sum);
/// into += the sum of all parts; both are whole core::ExactSquareSum.
void add_square_sums(ConstBufferView parts, BufferView into);
/// Raises `largest`, one u32, to the largest magnitude as the bits of a float (which have the numbers' order;
/// NaN is above Inf).
void raise_to_largest(ConstElements values, BufferView largest);

/// What all optimizers step: fp32 master values from gradients of any dtype, and in the same pass the rounded
/// parameter that the model reads.
struct ParameterStep {
  ConstElements gradient;
  float gradient_factor = 1;  ///< multiplies the gradient first, for clipping
  BufferView master;          ///< fp32
  Elements parameter;         ///< receives a copy of the new master values; empty for none
  BufferView cleared;         ///< the gradient's memory if it is to be zero afterwards, otherwise empty
};

/// `momentum` is the fp32 momentum buffer, initially zero; empty if options.momentum is 0.
void sgd_step(const SgdOptions& options, const ParameterStep& parameter, BufferView momentum);

struct AdamMoments {
  BufferView first;   ///< fp32, initially zero
  BufferView second;  ///< fp32, initially zero
};
/// `step` counts from 1.
void adam_step(const AdamOptions& options, std::int64_t step, const ParameterStep& parameter,
               AdamMoments moments);

/// `moment` is fp32 and initially zero.
void lion_step(const LionOptions& options, const ParameterStep& parameter, BufferView moment);

/// For a whole matrix; `momentum` is fp32 and initially zero, `scratch` has at least muon_scratch_bytes() and
/// is overwritten. A GPU's stream runs several kernels, so no other thread may enqueue what uses the scratch
/// during the call. With S the shorter side of the matrix and X its direction, transposed if it has more rows
/// than columns: the norm is the root of a sum in double, over each row of X in order and then over the rows
/// in order; elements of products are sums in the order of the summed index, starting from 0. So a matrix has
/// the same bits wherever it is stepped.
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
