#include "gpu/collective/shared_memory/signature.hpp"

#include <algorithm>
#include <new>

namespace troupe::gpu {

void write_signature(const Signature& signature, std::byte* to) {
  new (to) SharedSignature{.kind = signature.kind,
                           .dtype = signature.dtype,
                           .reduce = signature.reduce,
                           .peer = signature.peer,
                           .input_counts = static_cast<std::uint32_t>(signature.input_counts.size()),
                           .output_counts = static_cast<std::uint32_t>(signature.output_counts.size()),
                           .elements = signature.elements};
  auto* const counts = reinterpret_cast<std::size_t*>(to + sizeof(SharedSignature));
  std::ranges::copy(signature.output_counts, std::ranges::copy(signature.input_counts, counts).out);
}

Signature read_signature(const std::byte* from) {
  const auto& shared = *reinterpret_cast<const SharedSignature*>(from);
  const auto* const counts = reinterpret_cast<const std::size_t*>(from + sizeof(SharedSignature));
  return {.kind = shared.kind,
          .dtype = shared.dtype,
          .reduce = shared.reduce,
          .peer = shared.peer,
          .elements = shared.elements,
          .input_counts = {counts, shared.input_counts},
          .output_counts = {counts + shared.input_counts, shared.output_counts}};
}

}  // namespace troupe::gpu
