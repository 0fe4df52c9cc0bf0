#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/files/source.hpp"
#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// A tensor that both sides have, in what it differs.
struct TensorDifference {
  std::string key;
  core::DType left_dtype{};
  core::DType right_dtype{};
  core::Shape left_shape;
  core::Shape right_shape;
  /// How elements differ; nothing when they cannot be compared. Two floating dtypes are compared as the wider
  /// one.
  struct Values {
    std::int64_t elements = 0;
    std::int64_t differing = 0;  ///< elements whose bits are not the same
    std::uint64_t bits = 0;      ///< bits that are not the same
    double max_difference = 0;   ///< the largest absolute one; NaN when one side only is NaN somewhere
    core::Shape first;           ///< index of the first element that differs
    double left = 0;             ///< what it is
    double right = 0;
  };
  std::optional<Values> values;

  bool is_equal() const {
    return left_dtype == right_dtype && left_shape == right_shape && values && values->differing == 0;
  }
};

/// A place in the common values, objects or the step.
struct ValueDifference {
  std::string path;
  std::string left;  ///< as value_line(); empty: it is not there
  std::string right;
};

struct CheckpointDifference {
  std::vector<std::string> only_left;
  std::vector<std::string> only_right;
  std::vector<TensorDifference> tensors;  ///< that are not equal
  std::vector<ValueDifference> values;
  bool compared_values = false;  ///< both sides had some
  std::size_t common_tensors = 0;
  std::uint64_t bytes = 0;  ///< that were compared, of one side

  bool is_equal() const {
    return only_left.empty() && only_right.empty() && tensors.empty() && values.empty();
  }
};

/// Reads both sides in pieces of `chunk_bytes`. How the tensors are sharded, who saved them and when makes no
/// difference.
core::Result<CheckpointDifference> diff_checkpoints(const Source& left, const Source& right,
                                                    std::size_t chunk_bytes = kStreamBytes);

std::string difference_text(const CheckpointDifference& difference);
std::string difference_json(const CheckpointDifference& difference);

}  // namespace troupe::apps
