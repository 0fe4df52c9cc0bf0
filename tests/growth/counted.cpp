#include "tests/growth/counted.hpp"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace troupe {

Counted counted;

}  // namespace troupe

void* operator new(std::size_t bytes) {
  auto& all = troupe::counted;
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) std::abort();
  all.allocations += 1;
  all.allocated += malloc_usable_size(memory);
  all.bytes += malloc_usable_size(memory);
  all.most = std::max(all.most, all.bytes);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) troupe::counted.bytes -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  operator delete(memory);
}
