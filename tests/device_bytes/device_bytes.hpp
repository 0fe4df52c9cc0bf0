#pragma once

#include <cstddef>

namespace troupe::tests {

/// Like memcpy and memset, but no sanitizer looks: the way an emulated device reaches its memory, which is
/// poisoned for all else.
void copy_bytes(void* destination, const void* source, std::size_t bytes);
void set_bytes(void* memory, int value, std::size_t bytes);

}  // namespace troupe::tests
