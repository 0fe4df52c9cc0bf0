#pragma once

#include <cstddef>

#include "gpu/collective/operations.hpp"
#include "gpu/collective/shared_memory/layout.hpp"

namespace troupe::gpu {

/// Writes a signature with its counts behind it; ArenaLayout::signature_bytes() are enough.
void write_signature(const Signature& signature, std::byte* to);

/// The signature written there; its spans refer to that memory.
Signature read_signature(const std::byte* from);

}  // namespace troupe::gpu
