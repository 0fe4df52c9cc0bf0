#pragma once

#include <type_traits>

namespace troupe::apps::gpt {

/// What statistics, and the gradients of parameters, are summed in if a model computes with elements of this
/// type: fp32, but for the fp64 model of gradient checks.
template <class E>
using SumOf = std::conditional_t<std::is_same_v<E, double>, double, float>;

}  // namespace troupe::apps::gpt
