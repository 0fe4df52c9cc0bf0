#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// output[i] = inputs[0][i] op inputs[1][i] op ..., in this order: f64 in f64; f32, f16 and bf16 in fp32 with
/// one rounding at the end; integers modulo 2^bits, or bit by bit. `average` divides the sum by the number of
/// inputs before rounding. The output may be one of the inputs. The bits of an element depend only on its
/// inputs: a range may be cut anywhere. The dtype and the reduction must be a combination that prepare()
/// accepts.
void reduce_in_order(core::DType dtype, ReduceOp reduce, std::span<const std::byte* const> inputs,
                     std::byte* output, std::size_t elements);

}  // namespace troupe::gpu
