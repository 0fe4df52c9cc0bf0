#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/experts/row_move.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The ranks among which a model's experts are spread (ExpertConfig::ranks), as a pass uses them. All of them
/// go through passes of the same shape at the same time, each with tokens of its own: what one asks for here
/// the others ask for too, in the same order.
class ExpertPeers {
 public:
  virtual ~ExpertPeers() = default;

  /// The slots of each expert (E) that every rank has filled, by rank. `own` are this rank's.
  virtual core::Result<std::vector<std::vector<std::int64_t>>> gather_counts(
      const std::vector<std::int64_t>& own) = 0;
  /// Begins to give the others rows of `input`, of `row_bytes` each, and to take theirs into `output`. Both
  /// stay as they are until wait(); one exchange at a time.
  virtual core::Result<void> begin_exchange(std::span<const std::byte> input, std::span<std::byte> output,
                                            const core::RowMove& move, std::size_t row_bytes) = 0;
  virtual core::Result<void> wait() = 0;
  /// Where the gradient of an expert's parameter that this rank has is added, for tokens of the rank
  /// `source`: floats, or what the pass computes with.
  virtual void* gradient(std::size_t parameter, std::size_t source) = 0;
};

}  // namespace troupe::apps::gpt
