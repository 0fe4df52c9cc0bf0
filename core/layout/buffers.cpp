#include "core/layout/buffers.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/errors.hpp"

namespace troupe::core {

bool is_whole_parameter(const WholeParameterTraits& traits) {
  return traits.dimensions == 2 && !traits.excluded && !traits.embedding_or_output;
}

std::vector<BucketRef> ready_order(std::span<const BufferLayout> layouts,
                                   std::span<const std::vector<std::size_t>> members) {
  CHECK(layouts.size() == members.size(), "every layout has its parameters");
  std::vector<std::pair<std::size_t, BucketRef>> by_first_parameter;
  for (std::size_t buffer = 0; buffer < layouts.size(); ++buffer) {
    const auto& places = layouts[buffer].parameters;
    std::vector<std::size_t> first(layouts[buffer].buckets.size(), std::numeric_limits<std::size_t>::max());
    for (std::size_t i = 0; i < places.size(); ++i) {
      auto& least = first[static_cast<std::size_t>(places[i].bucket)];
      least = std::min(least, members[buffer].at(i));
    }
    for (std::size_t bucket = 0; bucket < first.size(); ++bucket) {
      by_first_parameter.push_back({first[bucket], {buffer, bucket}});
    }
  }
  std::sort(by_first_parameter.begin(), by_first_parameter.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<BucketRef> order;
  for (const auto& [first, ref] : by_first_parameter) order.push_back(ref);
  return order;
}

}  // namespace troupe::core
