#pragma once

namespace troupe::core {

/// Prints the sentence and where it was checked to standard error, then ends the process with abort().
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* sentence) noexcept;

}  // namespace troupe::core

/// Ends the process when the program itself is wrong. The sentence says what must hold. Bad input from a user
/// or a file is never a check but an Error (core/result.hpp).
#define TROUPE_CHECK(condition, sentence)                                     \
  do {                                                                        \
    if (!(condition)) [[unlikely]] {                                          \
      ::troupe::core::check_failed(__FILE__, __LINE__, #condition, sentence); \
    }                                                                         \
  } while (false)
