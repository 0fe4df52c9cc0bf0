#pragma once

#include <cstddef>

#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Whether convert_elements() can: equal dtypes, or two floating ones. Errc::mismatch names both.
Result<void> check_convertible(DType from, DType to);

/// Copies `count` elements and converts them: through double where f64 takes part, else through float, by the
/// rules of dtype.hpp. The memories do not overlap and need no alignment.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count);

}  // namespace troupe::core
