#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/element_range.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// How the parameters of one buffer are arranged in it. All numbers of a layout are in elements.
///
/// A layout is a pure function of its inputs: every rank that computes it gets the same one.
enum class LayoutPolicy : std::uint8_t {
  plain,            ///< without padding, for optimizers that are not sharded
  padded,           ///< buckets are cut evenly into shards, regardless of parameter boundaries
  whole_parameter,  ///< no parameter is cut by a shard boundary, for optimizers like Muon
  row_aligned,      ///< shards are rows, for FSDP; see layout/row_layout.hpp
};

std::string_view name_of(LayoutPolicy policy) noexcept;
Result<LayoutPolicy> layout_policy_from_name(std::string_view name);

/// A parameter as a layout sees it.
struct LayoutParameter {
  std::int64_t elements = 0;
  /// Tied at both ends of a pipeline: `padded` and `whole_parameter` give it a bucket of its own, so that it
  /// has the same place in both buffers.
  bool shared_embedding = false;
  /// Rows and columns of a matrix, 0 for anything else. Only `whole_parameter` uses them: the cost of a
  /// matrix decides which shard takes it.
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  /// Number of ranks that each hold such a slice of the full matrix's rows.
  std::int64_t row_shards = 1;
};

struct LayoutOptions {
  /// A bucket closes with the parameter that reaches this many elements; without it there is one bucket.
  std::optional<std::int64_t> bucket_size;
  /// Size of the group that shards the optimizer.
  int shards = 1;
  /// Buckets end at multiples of 2^16 elements, which suits network switches.
  bool pad_for_bus_bandwidth = false;
  /// Shards of `padded` and `whole_parameter` are also multiples of this.
  std::int64_t part_multiple = 1;
};

/// One of `parts` contiguous parts whose sizes differ by at most one element; the longer ones come first.
ElementRange even_part(ElementRange range, int parts, int part);
/// Elements in the longest of these parts.
constexpr std::int64_t longest_part(std::int64_t elements, std::int64_t parts) {
  return (elements + parts - 1) / parts;
}

struct ParameterPlace {
  std::int64_t start = 0;
  std::int64_t end = 0;
  int bucket = 0;

  friend bool operator==(const ParameterPlace&, const ParameterPlace&) = default;
};

struct BucketPlace {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t unpadded = 0;  ///< elements without the padding at the end

  std::int64_t size() const { return end - start; }
  friend bool operator==(const BucketPlace&, const BucketPlace&) = default;
};

/// Buckets follow each other without gaps. Bucket 0 holds the parameters registered last, whose gradients
/// come first.
struct BufferLayout {
  std::int64_t elements = 0;
  std::vector<ParameterPlace> parameters;  ///< in registration order
  std::vector<BucketPlace> buckets;
  int shards = 1;  ///< 1 for `plain`, whose optimizer is not sharded

  friend bool operator==(const BufferLayout&, const BufferLayout&) = default;
};

/// Parameters are in registration order. Errc::invalid_argument names what cannot be laid out. The rules are
/// those of Megatron-Core's parameter and gradient buffers.
Result<BufferLayout> plain_layout(const std::vector<LayoutParameter>& parameters,
                                  const LayoutOptions& options);
Result<BufferLayout> padded_layout(const std::vector<LayoutParameter>& parameters,
                                   const LayoutOptions& options);
Result<BufferLayout> whole_parameter_layout(const std::vector<LayoutParameter>& parameters,
                                            const LayoutOptions& options);
/// Calls one of the three above; `row_aligned` is refused.
Result<BufferLayout> buffer_layout(LayoutPolicy policy, const std::vector<LayoutParameter>& parameters,
                                   const LayoutOptions& options);

/// The part of a bucket that `shard` owns, as a range of the buffer. layout.shards divides bucket sizes.
ElementRange shard_range(const BufferLayout& layout, int bucket, int shard);

/// The slice of a parameter that a shard owns, relative to four origins.
struct Ownership {
  ElementRange in_buffer;
  ElementRange in_bucket;
  ElementRange in_shard;
  ElementRange in_parameter;

  friend bool operator==(const Ownership&, const Ownership&) = default;
};

/// Empty when the shard owns no element of the parameter.
std::optional<Ownership> ownership(const BufferLayout& layout, int parameter, int shard);

/// Alignment of positions, in elements.
inline constexpr std::int64_t kParameterAlignment = 64;
/// Shards begin and end at multiples of this, so that of 2-byte elements too each begins at 16 bytes: what
/// NCCL and the kernels' packs want. The divisor of Megatron-Core, lcm(shards, 128), gives that for up to 16
/// shards only.
inline constexpr std::int64_t kShardAlignment = 8;
/// Bucket ends of `padded` and `whole_parameter` are multiples of this.
std::int64_t bucket_divisor(int shards, bool pad_for_bus_bandwidth, std::int64_t part_multiple = 1);
/// Shard sizes of `whole_parameter` are multiples of this.
std::int64_t whole_parameter_shard_divisor(int shards, bool pad_for_bus_bandwidth,
                                           std::int64_t part_multiple = 1);

}  // namespace troupe::core
