#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// One of the members that share each sequence.
struct SequenceMember {
  std::size_t members = 1, index = 0;
};
/// For a group on the host or on a GPU; null: there is only one member.
template <class Group>
SequenceMember member_of(const Group* group) {
  return group == nullptr ? SequenceMember{} : SequenceMember{group->size(), group->index()};
}

/// The positions of a sequence of T tokens that a member keeps, its piece. The sequence is cut into 2N runs,
/// and member i keeps runs i and 2N - 1 - i, so that causal attention is the same work for each. T is a
/// multiple of 2N.
std::vector<std::size_t> positions_of_member(std::size_t length, std::size_t members, std::size_t index);

/// The tokens of one of the ranks that share each sequence (positions_of_member()), out of the text of whole
/// sequences.
class SequencePart {
 public:
  using Tokens = std::span<const std::int32_t>;

  /// `shape` describes whole sequences and must pass shape_of().
  SequencePart(BatchShape shape, const SequenceMember& member);
  /// The shape of one member's part. Errc::invalid_argument if the runs are not equal.
  static core::Result<BatchShape> shape_of(BatchShape shape, std::size_t members);

  const BatchShape& whole() const { return shape_; }
  /// This member's tokens of whole sequences.
  std::vector<std::int32_t> own(Tokens tokens) const;
  /// This member's tokens of one sequence of 1..T tokens, padded at the end, which no earlier token sees.
  std::vector<std::int32_t> own_of_one(Tokens tokens) const;
  /// How many of the member's own rows have a target.
  std::size_t own_targets(Tokens targets) const;
  /// The share of the member's own rows in a mean over the rows with a target.
  double weight(Tokens targets) const;
  /// The member's rows among those of whole sequences, in order.
  std::vector<std::size_t> own_rows() const;
  /// Where this member keeps the token at a position, if it does.
  std::optional<std::size_t> place_of(std::size_t position) const;

 private:
  BatchShape shape_;
  std::vector<std::size_t> positions_;
};

}  // namespace troupe::apps::gpt
