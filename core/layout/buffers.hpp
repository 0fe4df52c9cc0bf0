#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "core/layout/buffer_layout.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// What determines the buffer of a parameter.
struct ParameterTraits {
  DType dtype = DType::f32;      ///< as the model computes with it
  bool quantised = false;        ///< it has storage of quantised bytes
  bool expert = false;           ///< an expert parameter with its own groups, see expert_has_own_groups
  bool whole_parameter = false;  ///< see is_whole_parameter
};

/// Parameters with equal keys share a buffer. Quantised ones are stored as u8.
struct BufferKey {
  DType storage = DType::f32;
  DType gradient = DType::f32;
  bool expert = false;
  bool whole_parameter = false;

  friend bool operator==(const BufferKey&, const BufferKey&) = default;
};

struct BufferMembers {
  BufferKey key;
  std::vector<std::size_t> parameters;  ///< indices in the input, in registration order
  /// The index of each among parameters with the same logical dtype, gradient dtype and flags: finds a
  /// parameter of a quantised model in a checkpoint of an unquantised one.
  std::vector<std::size_t> counts;
};

/// Trainable parameters in registration order; buffers in the order in which their first parameter appears.
std::vector<BufferMembers> group_into_buffers(std::span<const ParameterTraits> parameters,
                                              bool reduce_in_fp32);

/// Experts share the buffers of dense parameters unless their topology differs.
bool expert_has_own_groups(int ep, int etp, int tp);

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

struct BucketGroupOptions {
  bool single_group = false;
  /// Reductions with a narrow wire and an fp32 sum take one bucket each.
  bool one_bucket_each = false;
};

struct BufferBuckets {
  std::size_t buckets = 0;
  bool quantised = false;
};

/// Buckets whose collectives are issued together, for the buffers of one topology. Small unquantised buckets
/// join the last quantised one, which is ready last anyway. Errc::invalid_argument for more than one
/// quantised buffer.
Result<std::vector<std::vector<BucketRef>>> bucket_groups(std::span<const BufferBuckets> buffers,
                                                          const BucketGroupOptions& options = {});

/// All buckets of several buffers in the order in which a backward pass completes them: by their first
/// registered parameter, in descending order. `members[b]` are the registration indices of the parameters of
/// layouts[b].
std::vector<BucketRef> ready_order(std::span<const BufferLayout> layouts,
                                   std::span<const std::vector<std::size_t>> members);

}  // namespace troupe::core
