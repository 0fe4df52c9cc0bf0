#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>

namespace troupe::tests {

/// What code of others may throw, for tests of what becomes of it.
enum class Thrown : std::uint8_t { bad_alloc, out_of_range, no_exception };

[[noreturn]] inline void throw_it(Thrown what) {
  if (what == Thrown::bad_alloc) throw std::bad_alloc();
  if (what == Thrown::out_of_range) throw std::out_of_range("map::at");
  throw 42;  // NOLINT: what is thrown is up to others
}

inline const char* words_of(Thrown what) {
  if (what == Thrown::bad_alloc) return "std::bad_alloc";
  return what == Thrown::out_of_range ? "map::at" : "something that is not a std::exception";
}

}  // namespace troupe::tests
