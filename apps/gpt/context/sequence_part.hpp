#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/gpt/activations.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// One of those that share each sequence.
struct SequenceMember {
  std::size_t members = 1, index = 0;
};
/// Of a group, on the host or on a GPU; null: there is no other.
template <class Group>
SequenceMember member_of(const Group* group) {
  return group == nullptr ? SequenceMember{} : SequenceMember{group->size(), group->index()};
}

/// Which positions of a sequence of T tokens a member keeps. The sequence is cut in 2N pieces, and member i
/// keeps pieces i and 2N - 1 - i, so that causal attention is as much work for each. T is a multiple of 2N.
std::vector<std::size_t> positions_of_member(std::size_t length, std::size_t members, std::size_t index);

/// The tokens that one of the ranks that share each sequence has (positions_of_member()), of text that is of
/// whole sequences.
class SequencePart {
 public:
  using Tokens = std::span<const std::int32_t>;

  /// `shape` is of whole sequences and passes shape_of().
  SequencePart(BatchShape shape, const SequenceMember& member);
  /// Of one member. Errc::invalid_argument where pieces are not even.
  static core::Result<BatchShape> shape_of(BatchShape shape, std::size_t members);

  const BatchShape& whole() const { return shape_; }
  /// This member's of whole sequences.
  std::vector<std::int32_t> own(Tokens tokens) const;
  /// This member's of one sequence of 1..T tokens, filled up behind its end, which nothing before it sees.
  std::vector<std::int32_t> own_of_one(Tokens tokens) const;
  /// The part of a mean over the rows with a target that the member's own rows are.
  double weight(Tokens targets) const;
  /// Which of the rows of whole sequences are the member's, in order.
  std::vector<std::size_t> own_rows() const;
  /// Where this member has the token at a position, if it has.
  std::optional<std::size_t> place_of(std::size_t position) const;

 private:
  BatchShape shape_;
  std::vector<std::size_t> positions_;
};

}  // namespace troupe::apps::gpt
