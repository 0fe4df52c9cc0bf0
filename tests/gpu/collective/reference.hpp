#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::gpu {

using Bytes = std::vector<std::byte>;

/// Values of moderate size and both signs, finite in every type; 0 and 1 for booleans.
Bytes random_elements(core::DType dtype, std::size_t count, std::mt19937_64& random);

/// The reduction by its definition, one element after the other: fp32 for the narrow types, in rank order,
/// one rounding.
Bytes reference_reduce(core::DType dtype, ReduceOp reduce, const std::vector<Bytes>& inputs);

/// Whether `output` is the reference's up to the rounding of any order of summation, with a rounding to the
/// type after every step, and of a factor 1/n that goes before: for back-ends whose arithmetic is another's.
/// What is exact in every order (integers, min, max) must be exact.
bool is_reduction_up_to_rounding(core::DType dtype, ReduceOp reduce, const std::vector<Bytes>& inputs,
                                 const Bytes& output);

Bytes slice(const Bytes& bytes, std::size_t begin, std::size_t count);
Bytes concatenate(const std::vector<Bytes>& parts);

}  // namespace troupe::gpu
