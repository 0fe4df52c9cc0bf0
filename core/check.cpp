#include "core/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace troupe::core {

void check_failed(const char* file, int line, const char* condition, const char* sentence) noexcept {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed: %s\n", file, line, condition, sentence);
  std::fflush(stderr);
  std::abort();
}

}  // namespace troupe::core
