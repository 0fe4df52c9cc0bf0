#pragma once

#include <cstddef>

namespace troupe::posix {

/// This process will allocate about this many bytes: they come from the largest pages that the system gives,
/// and stay with the process until it ends. For programs that go through much memory in no order, which
/// otherwise wait for page tables. What is not touched costs nothing.
void expect_heap(std::size_t bytes);

}  // namespace troupe::posix
