#include "gpu/collective/shared_memory/signature.hpp"

#include <new>
#include <span>

namespace troupe::gpu {

void write_signature(const Signature& signature, std::byte* to) {
  new (to) SharedSignature{.kind = signature.kind,
                           .dtype = signature.dtype,
                           .reduce = signature.reduce,
                           .peer = signature.peer,
                           .input_counts = static_cast<std::uint32_t>(signature.input_counts.size()),
                           .output_counts = static_cast<std::uint32_t>(signature.output_counts.size()),
                           .elements = signature.elements};
  auto* next = reinterpret_cast<std::size_t*>(to + sizeof(SharedSignature));
  for (const auto& of : {signature.input_counts, signature.output_counts}) {
    for (std::size_t member = 0; member < of.size(); ++member) *next++ = of[member];
  }
}

Signature read_signature(const std::byte* from) {
  const auto& shared = *reinterpret_cast<const SharedSignature*>(from);
  const auto* const counts = reinterpret_cast<const std::size_t*>(from + sizeof(SharedSignature));
  return {.kind = shared.kind,
          .dtype = shared.dtype,
          .reduce = shared.reduce,
          .peer = shared.peer,
          .elements = shared.elements,
          .input_counts = std::span(counts, shared.input_counts),
          .output_counts = std::span(counts + shared.input_counts, shared.output_counts)};
}

}  // namespace troupe::gpu
