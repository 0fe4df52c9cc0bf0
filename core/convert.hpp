#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Whether convert_elements() supports it: equal dtypes, or two floating ones. Errc::mismatch names both.
Result<void> check_convertible(DType from, DType to);

/// Copies and converts `count` elements: through float, but for f64 to f64, by the rules of dtype.hpp. f64 is
/// rounded to f32 first and then to a narrower dtype, as in PyTorch. Source and target must not overlap and
/// need no alignment.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count);

}  // namespace troupe::core
