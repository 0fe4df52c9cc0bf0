#pragma once

#include <cstddef>

#include "gpu/collective/operations.hpp"
#include "gpu/collective/shared_memory/layout.hpp"

namespace troupe::gpu {

/// Writes a signature followed by its counts; ArenaLayout::signature_bytes() suffice.
void write_signature(const Signature& signature, std::byte* to);

/// The signature written there; its counts are there.
Signature read_signature(const std::byte* from);

}  // namespace troupe::gpu
