#include "core/layout/buffer_layout.hpp"

#include <algorithm>
#include <numeric>

#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"
#include "core/layout/validation.hpp"

namespace troupe::core {
namespace {

constexpr auto kPolicyNames = enum_names<LayoutPolicy>("plain", "padded", "whole_parameter", "row_aligned");

constexpr std::int64_t kBucketAlignment = 128;
constexpr std::int64_t kBusBandwidthAlignment = 65536;

/// Collects parameters into buckets, from the last registered to the first.
class BucketWalk {
 public:
  BucketWalk(std::size_t parameters, int shards, std::int64_t bucket_divisor) : divisor_(bucket_divisor) {
    layout_.parameters.resize(parameters);
    layout_.shards = shards;
  }

  std::int64_t cursor() const { return cursor_; }
  bool bucket_is_empty() const { return bucket_is_empty_; }
  std::int64_t bucket_elements() const { return cursor_ - bucket_start_; }

  void place(std::size_t parameter, std::int64_t start, std::int64_t elements) {
    cursor_ = start + elements;
    layout_.parameters[parameter] = {start, cursor_, static_cast<int>(layout_.buckets.size())};
    bucket_is_empty_ = false;
  }

  /// The bucket ends at `end`, except for padding.
  void close_bucket(std::int64_t end) {
    cursor_ = bucket_start_ + round_up(end - bucket_start_, divisor_);
    layout_.buckets.push_back({bucket_start_, cursor_, end - bucket_start_});
    bucket_start_ = cursor_;
    bucket_is_empty_ = true;
  }

  BufferLayout finish() {
    if (!bucket_is_empty_) close_bucket(cursor_);
    layout_.elements = cursor_;
    return std::move(layout_);
  }

 private:
  BufferLayout layout_;
  std::int64_t divisor_;
  std::int64_t cursor_ = 0;
  std::int64_t bucket_start_ = 0;
  bool bucket_is_empty_ = true;
};

}  // namespace

std::string_view name_of(LayoutPolicy policy) noexcept {
  return kPolicyNames[policy];
}

Result<LayoutPolicy> layout_policy_from_name(std::string_view name) {
  if (const auto policy = kPolicyNames.find(name)) return *policy;
  return fail(Errc::invalid_argument,
              "'{}' is not a layout policy; choose one of plain, padded, whole_parameter, row_aligned", name);
}

std::int64_t bucket_divisor(int shards, bool pad_for_bus_bandwidth, std::int64_t part_multiple) {
  return std::lcm(shards * part_multiple, pad_for_bus_bandwidth ? kBusBandwidthAlignment : kBucketAlignment);
}

std::int64_t whole_parameter_shard_divisor(int shards, bool pad_for_bus_bandwidth,
                                           std::int64_t part_multiple) {
  return std::lcm(kParameterAlignment, bucket_divisor(shards, pad_for_bus_bandwidth, part_multiple) / shards);
}

Result<BufferLayout> plain_layout(const std::vector<LayoutParameter>& parameters,
                                  const LayoutOptions& options) {
  TRY(validate(parameters, options));
  BucketWalk walk(parameters.size(), 1, 1);
  for (std::size_t i = parameters.size(); i-- > 0;) {
    walk.place(i, walk.cursor(), parameters[i].elements);
    if (options.bucket_size && walk.bucket_elements() >= *options.bucket_size)
      walk.close_bucket(walk.cursor());
  }
  return walk.finish();
}

Result<BufferLayout> padded_layout(const std::vector<LayoutParameter>& parameters,
                                   const LayoutOptions& options) {
  TRY(validate(parameters, options));
  BucketWalk walk(parameters.size(), options.shards,
                  bucket_divisor(options.shards, options.pad_for_bus_bandwidth, options.part_multiple));
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const LayoutParameter& parameter = parameters[i];
    std::int64_t start = round_up(walk.cursor(), kParameterAlignment);
    if (parameter.shared_embedding && !walk.bucket_is_empty()) {
      // The gap before the embedding counts as content of the previous bucket, as in Megatron-Core.
      walk.close_bucket(start);
      start = walk.cursor();
    }
    walk.place(i, start, parameter.elements);
    if (parameter.shared_embedding ||
        (options.bucket_size && walk.bucket_elements() >= *options.bucket_size)) {
      walk.close_bucket(walk.cursor());
    }
  }
  return walk.finish();
}

Result<BufferLayout> buffer_layout(LayoutPolicy policy, const std::vector<LayoutParameter>& parameters,
                                   const LayoutOptions& options) {
  switch (policy) {
    case LayoutPolicy::plain:
      return plain_layout(parameters, options);
    case LayoutPolicy::padded:
      return padded_layout(parameters, options);
    case LayoutPolicy::whole_parameter:
      return whole_parameter_layout(parameters, options);
    case LayoutPolicy::row_aligned:
      break;
  }
  return fail(Errc::invalid_argument,
              "the policy row_aligned has no buckets; ask for its row layout instead");
}

ElementRange even_part(ElementRange range, int parts, int part) {
  CHECK(part >= 0 && part < parts, "a part is one of the parts");
  const std::int64_t size = range.size() / parts;
  const std::int64_t longer = range.size() % parts;
  const std::int64_t start = range.start + part * size + std::min<std::int64_t>(part, longer);
  return {start, start + size + (part < longer ? 1 : 0)};
}

ElementRange shard_range(const BufferLayout& layout, int bucket, int shard) {
  const BucketPlace& place = layout.buckets.at(static_cast<std::size_t>(bucket));
  CHECK(place.size() % layout.shards == 0, "a bucket that is sharded divides by the number of shards");
  return even_part({place.start, place.end}, layout.shards, shard);
}

std::optional<Ownership> ownership(const BufferLayout& layout, int parameter, int shard) {
  const ParameterPlace& place = layout.parameters.at(static_cast<std::size_t>(parameter));
  const ElementRange owner = shard_range(layout, place.bucket, shard);
  const ElementRange owned{std::max(place.start, owner.start), std::min(place.end, owner.end)};
  if (owned.size() <= 0) return std::nullopt;
  const auto relative_to = [&](std::int64_t origin) {
    return ElementRange{owned.start - origin, owned.end - origin};
  };
  const std::int64_t bucket_start = layout.buckets[static_cast<std::size_t>(place.bucket)].start;
  return Ownership{.in_buffer = owned,
                   .in_bucket = relative_to(bucket_start),
                   .in_shard = relative_to(owner.start),
                   .in_parameter = relative_to(place.start)};
}

}  // namespace troupe::core
