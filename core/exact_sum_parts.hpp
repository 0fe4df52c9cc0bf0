#pragma once

#include "core/exact_sum.hpp"

namespace troupe::core {

__extension__ using Wide = unsigned __int128;

/// For code that adds up many squares by itself: adds `count` times the square of 2^(field - 150), the last
/// place of floats with that exponent field, which is 1 to 254. The limbs may be large before; afterwards
/// they are as accumulate() leaves them. `count` is below 2^112.
void add_squares_of_place(Wide count, int field, ExactSquareSum& sum) noexcept;

}  // namespace troupe::core
