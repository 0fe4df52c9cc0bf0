#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/experts/row_move.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// The ranks among which a model's experts are distributed (ExpertConfig::ranks), as a pass uses them. All of
/// them go through passes of the same shape at the same time, each with tokens of its own: what one asks for
/// here the others ask for too, in the same order.
class ExpertPeers {
 public:
  virtual ~ExpertPeers() = default;

  /// The slots of each expert (E) that every rank has filled, by rank. `own` are this rank's.
  virtual core::Result<std::vector<std::vector<std::int64_t>>> gather_counts(
      const std::vector<std::int64_t>& own) = 0;
  /// Begins to give the others rows of `input`, of `row_bytes` each, and to take theirs into `output`, in the
  /// memory that the pass computes in. Both stay as they are until wait(); one exchange at a time. On a GPU
  /// the move has no lists of rows.
  virtual core::Result<void> begin_exchange(std::span<const std::byte> input, std::span<std::byte> output,
                                            const core::RowMove& move, std::size_t row_bytes) = 0;
  virtual core::Result<void> wait() = 0;
  /// Where the gradient of an expert's parameter that this rank has is added, for tokens of the rank
  /// `source`: floats, or what the pass computes with.
  virtual void* gradient(std::size_t parameter, std::size_t source) = 0;
};

/// Stands in for them in a pass that only warms a device up, before the first collective: each has counted
/// what this rank has, and nothing moves.
class AbsentPeers final : public ExpertPeers {
 public:
  /// Gradients of every expert are added to `gradient`.
  AbsentPeers(std::size_t ranks, void* gradient) : ranks_(ranks), gradient_(gradient) {}

  core::Result<std::vector<std::vector<std::int64_t>>> gather_counts(
      const std::vector<std::int64_t>& own) override {
    return std::vector(ranks_, own);
  }
  core::Result<void> begin_exchange(std::span<const std::byte>, std::span<std::byte>, const core::RowMove&,
                                    std::size_t) override {
    return {};
  }
  core::Result<void> wait() override { return {}; }
  void* gradient(std::size_t, std::size_t) override { return gradient_; }

 private:
  std::size_t ranks_;
  void* gradient_;
};

}  // namespace troupe::apps::gpt
