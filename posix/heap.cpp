#include "posix/heap.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace troupe::posix {

void expect_heap(std::size_t bytes) {
  // All of it from one end of the heap, to which it returns here.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  // Small blocks join their neighbours when they are freed; later, many would at once, all of them cold.
  mallopt(M_MXFAST, 0);
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
  // Only a hint, as for buffers.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  std::free(memory);
}

}  // namespace troupe::posix
