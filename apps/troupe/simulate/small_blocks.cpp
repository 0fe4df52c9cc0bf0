#include "apps/troupe/simulate/small_blocks.hpp"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "core/errors.hpp"

#ifndef __SANITIZE_ADDRESS__  // which sees what is used after it was freed
namespace {

struct Block {
  Block* next;
};

// What the program's operators new and delete share; all blocks are malloc()'s, so any thread may free them.
thread_local bool keeps = false;
thread_local std::array<Block*, 64> lists{};

/// malloc()'s smallest block has room for 24 bytes, each further size for 16 more.
std::size_t list_that_fits(std::size_t bytes) {
  return std::max<std::size_t>((bytes + 7) / 16, 1);
}

}  // namespace

void* operator new(std::size_t bytes) {
  const std::size_t list = list_that_fits(bytes);
  if (keeps && list < lists.size() && lists[list] != nullptr)
    return std::exchange(lists[list], lists[list]->next);
  for (;;) {
    if (void* const memory = std::malloc(std::max<std::size_t>(bytes, 1)); memory != nullptr) return memory;
    const auto handler = std::get_new_handler();
    CHECK(handler != nullptr, "the program has said what happens without memory");
    handler();
  }
}

void operator delete(void* memory) noexcept {
  if (keeps && memory != nullptr) {
    const std::size_t list = (malloc_usable_size(memory) - 8) / 16;
    if (list >= 1 && list < lists.size()) {
      lists[list] = new (memory) Block{lists[list]};
      return;
    }
  }
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  operator delete(memory);
}

namespace troupe::apps {

void keep_small_blocks() {
  keeps = true;
}

}  // namespace troupe::apps
#else
namespace troupe::apps {

void keep_small_blocks() {}

}  // namespace troupe::apps
#endif
