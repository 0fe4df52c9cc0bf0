#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/layout/buffer_layout.hpp"

namespace troupe::core {
namespace {

struct AnyCase {
  std::vector<LayoutParameter> parameters;
  LayoutOptions options;
};

AnyCase any_case() {
  AnyCase result;
  const int count = *rc::gen::inRange(1, 20);
  for (int i = 0; i < count; ++i) {
    result.parameters.push_back({.elements = *rc::gen::inRange<std::int64_t>(1, 3000),
                                 .shared_embedding = *rc::gen::inRange(0, 8) == 0});
  }
  result.options.shards = *rc::gen::element(1, 2, 3, 4, 6, 8, 12);
  result.options.pad_for_bus_bandwidth = *rc::gen::inRange(0, 6) == 0;
  if (*rc::gen::arbitrary<bool>()) result.options.bucket_size = *rc::gen::inRange<std::int64_t>(1, 8000);
  return result;
}

/// Parameters lie in their bucket, do not overlap, and buckets follow each other.
void check_geometry(const AnyCase& test, const BufferLayout& layout) {
  std::int64_t end = 0;
  for (const BucketPlace& bucket : layout.buckets) {
    RC_ASSERT(bucket.start == end);
    RC_ASSERT(bucket.unpadded > 0 && bucket.unpadded <= bucket.size());
    end = bucket.end;
  }
  RC_ASSERT(end == layout.elements);

  std::vector<bool> used(static_cast<std::size_t>(layout.elements));
  for (std::size_t i = 0; i < test.parameters.size(); ++i) {
    const ParameterPlace& place = layout.parameters.at(i);
    const BucketPlace& bucket = layout.buckets.at(static_cast<std::size_t>(place.bucket));
    RC_ASSERT(place.end - place.start == test.parameters[i].elements);
    RC_ASSERT(place.start >= bucket.start && place.end <= bucket.end);
    for (auto at = static_cast<std::size_t>(place.start); at < static_cast<std::size_t>(place.end); ++at) {
      RC_ASSERT(!used[at]);
      used[at] = true;
    }
  }
}

/// The slices of the shards tile each parameter in shard order, and their four ranges agree.
void check_ownership(const BufferLayout& layout) {
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    const ParameterPlace& place = layout.parameters[i];
    const BucketPlace& bucket = layout.buckets[static_cast<std::size_t>(place.bucket)];
    std::int64_t covered = 0;
    for (int shard = 0; shard < layout.shards; ++shard) {
      const auto slice = ownership(layout, static_cast<int>(i), shard);
      if (!slice) continue;
      const ElementRange range = shard_range(layout, place.bucket, shard);
      RC_ASSERT(slice->in_parameter.start == covered);
      RC_ASSERT(slice->in_buffer.start - slice->in_parameter.start == place.start);
      RC_ASSERT(slice->in_buffer.start - slice->in_bucket.start == bucket.start);
      RC_ASSERT(slice->in_buffer.start - slice->in_shard.start == range.start);
      RC_ASSERT(slice->in_buffer.size() == slice->in_parameter.size());
      RC_ASSERT(slice->in_bucket.size() == slice->in_shard.size());
      RC_ASSERT(slice->in_bucket.size() == slice->in_parameter.size());
      RC_ASSERT(slice->in_shard.start >= 0 && slice->in_shard.end <= range.size());
      covered = slice->in_parameter.end;
    }
    RC_ASSERT(covered == place.end - place.start);
  }
}

/// The parameters of a bucket that holds a shared embedding.
void check_shared_alone(const AnyCase& test, const BufferLayout& layout) {
  for (std::size_t i = 0; i < test.parameters.size(); ++i) {
    if (!test.parameters[i].shared_embedding) continue;
    for (std::size_t j = 0; j < test.parameters.size(); ++j) {
      RC_ASSERT(i == j || layout.parameters[i].bucket != layout.parameters[j].bucket);
    }
  }
}

// Covers layout-13.
RC_GTEST_PROP(PlainLayout, IsDenseAndInReverseOrder, ()) {
  const AnyCase test = any_case();

  const auto layout = plain_layout(test.parameters, test.options).value();

  check_geometry(test, layout);
  check_ownership(layout);
  std::int64_t next = 0;
  for (std::size_t i = test.parameters.size(); i-- > 0;) {
    RC_ASSERT(layout.parameters[i].start == next);
    next = layout.parameters[i].end;
  }
  RC_ASSERT(next == layout.elements);
}

// Covers layout-2, layout-16.
RC_GTEST_PROP(PaddedLayout, OwnsEveryElementOnceAndIsAligned, ()) {
  const AnyCase test = any_case();

  const auto layout = padded_layout(test.parameters, test.options).value();

  check_geometry(test, layout);
  check_ownership(layout);
  check_shared_alone(test, layout);
  const std::int64_t divisor = test.options.pad_for_bus_bandwidth ? 65536 : 128;
  for (const ParameterPlace& place : layout.parameters) RC_ASSERT(place.start % 64 == 0);
  for (const BucketPlace& bucket : layout.buckets) {
    RC_ASSERT(bucket.end % divisor == 0);
    RC_ASSERT(bucket.end % test.options.shards == 0);
  }
}

// Covers layout-20.
RC_GTEST_PROP(PaddedLayout, BucketsCloseWithTheParameterThatReachesTheSize, ()) {
  const AnyCase test = any_case();
  RC_PRE(test.options.bucket_size.has_value());

  const auto layout = padded_layout(test.parameters, test.options).value();

  for (std::size_t i = 0; i < test.parameters.size(); ++i) {
    const ParameterPlace& place = layout.parameters[i];
    const BucketPlace& bucket = layout.buckets[static_cast<std::size_t>(place.bucket)];
    const bool is_last = i == 0 || layout.parameters[i - 1].bucket != place.bucket;
    RC_ASSERT(is_last || place.end - bucket.start < *test.options.bucket_size);
  }
}

// Covers whole-6.
RC_GTEST_PROP(WholeParameterLayout, KeepsEveryParameterInOneShard, ()) {
  const AnyCase test = any_case();

  const auto layout = whole_parameter_layout(test.parameters, test.options).value();

  check_geometry(test, layout);
  check_ownership(layout);
  check_shared_alone(test, layout);
  for (std::size_t i = 0; i < test.parameters.size(); ++i) {
    int owners = 0;
    for (int shard = 0; shard < layout.shards; ++shard) {
      if (ownership(layout, static_cast<int>(i), shard)) ++owners;
    }
    RC_ASSERT(owners == 1);
    RC_ASSERT(layout.parameters[i].start % 64 == 0);
  }
}

RC_GTEST_PROP(BufferLayout, IsAPureFunctionOfItsInputs, ()) {
  const AnyCase test = any_case();
  const AnyCase copy = test;

  for (const auto policy : {LayoutPolicy::plain, LayoutPolicy::padded, LayoutPolicy::whole_parameter}) {
    RC_ASSERT(buffer_layout(policy, test.parameters, test.options).value() ==
              buffer_layout(policy, copy.parameters, copy.options).value());
  }
}

}  // namespace
}  // namespace troupe::core
