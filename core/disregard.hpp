#pragma once

#include <string_view>

#include "core/result.hpp"

namespace troupe::core {

/// For the few results that change nothing; `why` tells the reader the reason. No other result is discarded:
/// scripts/check_style looks for casts to void.
template <class T>
void disregard(const Result<T>& result, std::string_view why) {
  static_cast<void>(result);
  static_cast<void>(why);
}

}  // namespace troupe::core
