#include "core/layout/buffers.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "core/errors.hpp"

namespace troupe::core {

std::vector<BufferMembers> group_into_buffers(std::span<const ParameterTraits> parameters,
                                              bool reduce_in_fp32) {
  std::vector<BufferMembers> buffers;
  std::map<std::tuple<DType, DType, bool, bool>, std::size_t> counters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterTraits& traits = parameters[i];
    const BufferKey key{.storage = traits.quantised ? DType::u8 : traits.dtype,
                        .gradient = reduce_in_fp32 ? DType::f32 : traits.dtype,
                        .expert = traits.expert,
                        .whole_parameter = traits.whole_parameter};
    auto buffer = std::find_if(buffers.begin(), buffers.end(),
                               [&](const BufferMembers& members) { return members.key == key; });
    if (buffer == buffers.end()) buffer = buffers.insert(buffer, BufferMembers{.key = key});
    buffer->parameters.push_back(i);
    buffer->counts.push_back(counters[{traits.dtype, key.gradient, key.expert, key.whole_parameter}]++);
  }
  return buffers;
}

bool expert_has_own_groups(int ep, int etp, int tp) {
  return ep > 1 || etp != tp;
}

bool is_whole_parameter(const WholeParameterTraits& traits) {
  return traits.dimensions == 2 && !traits.excluded && !traits.embedding_or_output;
}

Result<std::vector<std::vector<BucketRef>>> bucket_groups(std::span<const BufferBuckets> buffers,
                                                          const BucketGroupOptions& options) {
  std::vector<BucketRef> quantised;
  std::vector<BucketRef> others;
  std::vector<BucketRef> all;
  std::size_t quantised_buffers = 0;
  for (std::size_t buffer = 0; buffer < buffers.size(); ++buffer) {
    if (buffers[buffer].quantised) ++quantised_buffers;
    for (std::size_t bucket = 0; bucket < buffers[buffer].buckets; ++bucket) {
      (buffers[buffer].quantised ? quantised : others).push_back({buffer, bucket});
      all.push_back({buffer, bucket});
    }
  }
  if (quantised_buffers > 1) {
    return fail(Errc::invalid_argument,
                "{} buffers of one topology hold quantised parameters, but bucket groups know one; put the "
                "parameters into one buffer",
                quantised_buffers);
  }
  std::vector<std::vector<BucketRef>> groups;
  if (all.empty()) return groups;
  if (options.single_group) {
    groups.push_back(std::move(all));
    return groups;
  }
  for (const BucketRef& ref : quantised.empty() ? all : quantised) groups.push_back({ref});
  if (quantised.empty()) return groups;
  for (const BucketRef& ref : others) {
    if (options.one_bucket_each) {
      groups.push_back({ref});
    } else {
      groups[quantised.size() - 1].push_back(ref);
    }
  }
  return groups;
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
