#include "apps/gpt/model/sequence_part.hpp"

#include <algorithm>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

std::vector<std::size_t> positions_of_member(std::size_t length, std::size_t members, std::size_t index) {
  const std::size_t run = length / (2 * members);
  std::vector<std::size_t> positions;
  for (const std::size_t own : {index, 2 * members - 1 - index}) {
    for (std::size_t i = 0; i < run; ++i) positions.push_back(own * run + i);
  }
  return positions;
}

core::Result<BatchShape> SequencePart::shape_of(BatchShape shape, std::size_t members) {
  if (shape.length % (2 * members) == 0) return BatchShape{shape.batch, shape.length / members};
  return core::fail(core::Errc::invalid_argument,
                    "each piece of a sequence is two runs of its tokens, and {} tokens cannot be cut in {} "
                    "pieces; choose a context that is a multiple of {}",
                    shape.length, members, 2 * members);
}

SequencePart::SequencePart(BatchShape shape, const SequenceMember& member)
    : shape_(shape), positions_(positions_of_member(shape.length, member.members, member.index)) {}

std::vector<std::int32_t> SequencePart::own(Tokens tokens) const {
  std::vector<std::int32_t> found;
  for (std::size_t b = 0; b < tokens.size() / shape_.length; ++b) {
    for (const std::size_t position : positions_) found.push_back(tokens[b * shape_.length + position]);
  }
  return found;
}

std::vector<std::int32_t> SequencePart::own_of_one(Tokens tokens) const {
  CHECK(!tokens.empty() && tokens.size() <= shape_.length, "one sequence of 1..T tokens");
  std::vector<std::int32_t> filled(tokens.begin(), tokens.end());
  filled.resize(shape_.length, 0);
  return own(filled);
}

double SequencePart::weight(Tokens targets) const {
  const auto all = std::max<std::size_t>(learned_rows(targets), 1);
  return static_cast<double>(own_targets(targets)) / static_cast<double>(all);
}

std::size_t SequencePart::own_targets(Tokens targets) const {
  return learned_rows(own(targets));
}

std::vector<std::size_t> SequencePart::own_rows() const {
  std::vector<std::size_t> rows;
  for (std::size_t b = 0; b < shape_.batch; ++b) {
    for (const std::size_t position : positions_) rows.push_back(b * shape_.length + position);
  }
  return rows;
}

std::optional<std::size_t> SequencePart::place_of(std::size_t position) const {
  const auto found = std::find(positions_.begin(), positions_.end(), position);
  if (found == positions_.end()) return {};
  return static_cast<std::size_t>(found - positions_.begin());
}

}  // namespace troupe::apps::gpt
