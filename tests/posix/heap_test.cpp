#include "posix/heap.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace troupe::posix {
namespace {

/// What /proc/self/smaps says of the mapping with this address: "rd wr mr ... hg".
std::string flags_of(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') is_it = begin <= wanted && wanted < end;
    if (is_it && line.starts_with("VmFlags:")) return line;
  }
  return {};
}

TEST(Heap, LargePagesAreWantedForWhatIsExpected) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has a heap of its own";
#endif
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"))
    GTEST_SKIP() << "this kernel has no large pages for heaps";
  expect_heap(std::size_t{64} << 20);

  const auto memory = std::make_unique<std::byte[]>(std::size_t{1} << 20);

  EXPECT_NE(flags_of(memory.get() + (std::size_t{1} << 19)).find(" hg"), std::string::npos);
}

}  // namespace
}  // namespace troupe::posix
