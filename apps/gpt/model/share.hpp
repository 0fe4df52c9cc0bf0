#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "apps/gpt/model/config.hpp"
#include "apps/gpt/model/initial_values.hpp"
#include "apps/gpt/model/parameters.hpp"
#include "core/element_range.hpp"
#include "core/options/options.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The part of each layer that a rank keeps: one of `size` equal parts, the one with this index. Heads, the
/// feed-forward elements (of each expert too) and the vocabulary are cut; norms, routers, and biases that are
/// added to a sum, are whole on every rank.
struct TensorShare {
  std::size_t size = 1;
  std::size_t index = 0;
  bool sequence = false;   ///< sequence parallelism: norms see a part of the rows
  std::size_t slices = 1;  ///< of the part, in which it is computed; each is as large on every rank

  bool is_sliced() const { return size * slices > 1; }
};

/// Errc::invalid_argument names what does not divide.
core::Result<void> check_share(const ModelConfig& config, const TensorShare& share);

/// The model whose layers are one of `size` parts of those of `config`: it computes the part's share.
ModelConfig config_of_share(const ModelConfig& config, std::size_t size);

/// How a part is placed in its tensor, row-major: runs of elements, consecutive in the part, and `stride`
/// elements from the start of one run to the start of the next in the whole, the first at `first`.
struct PartLayout {
  std::int64_t runs = 1;
  std::int64_t run = 0;
  std::int64_t stride = 0;
  std::int64_t first = 0;

  std::int64_t elements() const { return runs * run; }
  /// The same in bytes, for elements of this size.
  PartLayout of(std::size_t element_bytes) const {
    const auto bytes = static_cast<std::int64_t>(element_bytes);
    return {runs, run * bytes, stride * bytes, first * bytes};
  }
};

/// One parameter, whole and as a rank keeps it.
struct SharedParameter {
  const ParameterSpec* whole;
  const ParameterSpec* part;
  std::optional<std::size_t> axis;  ///< the axis that is cut; empty: every rank keeps it whole
};

/// The parameters of a model and of one share of it, with the same places and names.
class SharedTable {
 public:
  /// Both have passed check_share().
  SharedTable(const ModelConfig& config, const TensorShare& share);

  const TensorShare& share() const { return share_; }
  const ParameterTable& whole() const { return whole_; }
  const ParameterTable& part() const { return part_; }
  std::size_t size() const { return whole_.specs.size(); }
  SharedParameter at(std::size_t parameter) const;
  /// For the part that the member with this index keeps.
  PartLayout layout(std::size_t parameter, std::size_t index) const;
  /// The members whose parts form the parameter with this rank's: all, or for an expert those with the same
  /// ones.
  std::pair<std::size_t, std::size_t> members_of(std::size_t parameter) const {
    if (!part_.specs[parameter].is_expert) return {0, share_.size};
    const std::size_t ranks = share_.size / columns_, first = share_.index / ranks * ranks;
    return {first, first + ranks};
  }

  /// Adds to parameters as a session registers them, which have the part's shapes, what they are parts of.
  void declare(std::span<core::ParameterSpec> specs) const;

 private:
  /// The number of the part that the member with this index keeps: experts that are cut over other ranks,
  /// too, have more parts, and those of one such rank's group follow each other.
  std::size_t place_of(std::size_t parameter, std::size_t index) const {
    if (!part_.specs[parameter].is_expert) return index;
    return index % (share_.size / columns_) + expert_part_ * share_.size;
  }

  TensorShare share_;
  std::size_t expert_part_;
  std::size_t columns_;  ///< groups of the ranks, of which each has other experts
  ParameterTable whole_;
  ParameterTable part_;
};

/// Initial values of the elements of `range` of this share's part, read from those of the whole tensor.
core::Result<void> read_part(const InitialValues& whole, const SharedTable& table, std::size_t parameter,
                             core::ElementRange range, std::span<float> values);

/// Copies one part of a tensor to its place in the whole.
void copy_from_part(const PartLayout& layout, const float* part, float* whole);
void copy_from_part(const PartLayout& bytes, const std::byte* part, std::byte* whole);

}  // namespace troupe::apps::gpt
