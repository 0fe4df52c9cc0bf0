#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/layout/buffer_layout.hpp"

namespace troupe::core {

/// Whether an optimizer that works on whole matrices takes a parameter.
struct WholeParameterTraits {
  std::size_t dimensions = 2;
  bool excluded = false;  ///< explicitly
  bool embedding_or_output = false;
};
bool is_whole_parameter(const WholeParameterTraits& traits);

/// Bucket `bucket` of buffer `buffer`.
struct BucketRef {
  std::size_t buffer = 0;
  std::size_t bucket = 0;

  friend bool operator==(const BucketRef&, const BucketRef&) = default;
};

/// All buckets of several buffers in the order in which a backward pass completes them: by their first
/// registered parameter, in descending order. `members[b]` are the registration indices of the parameters of
/// layouts[b].
std::vector<BucketRef> ready_order(std::span<const BufferLayout> layouts,
                                   std::span<const std::vector<std::size_t>> members);

}  // namespace troupe::core
