#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Cuts `rows` rows of this width as evenly as possible: the number of each member's elements.
inline std::vector<std::size_t> even_counts(std::size_t members, std::size_t rows, std::size_t width = 1) {
  std::vector<std::size_t> counts(members);
  for (std::size_t i = 0; i < members; ++i)
    counts[i] = (rows * (i + 1) / members - rows * i / members) * width;
  return counts;
}

/// The members that keep parts of the same layers, as the layers' computation needs them. All members request
/// the same operations in the same order; an operation is complete when its call returns.
template <class T>
class TensorGroup {
 public:
  using Counts = std::vector<std::size_t>;  ///< elements, by member

  virtual ~TensorGroup() = default;
  virtual std::size_t size() const = 0;
  virtual std::size_t index() const = 0;

  /// In place, the same bits on every member.
  virtual core::Result<void> sum(std::span<T> values) = 0;
  virtual core::Result<void> max(std::span<T> values) = 0;
  /// Member i gives counts[i] elements; all get all of them, in the order of members.
  virtual core::Result<void> gather(std::span<const T> own, std::span<T> all, const Counts& counts) = 0;
  /// `all` has counts[i] elements for member i; each member gets the sums of its own.
  virtual core::Result<void> scatter_sum(std::span<const T> all, std::span<T> own, const Counts& counts) = 0;
};

}  // namespace troupe::apps::gpt
