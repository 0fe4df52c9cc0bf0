#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/gpt/model/expert_config.hpp"
#include "core/experts/dispatch.hpp"
#include "core/experts/exchange.hpp"
#include "core/experts/row_move.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// An exchange of rows with other ranks, and which of them come here.
struct PlannedRows {
  std::uint64_t number = 0;
  core::ExpertExchange exchange;
};

/// Rows of an exchange that move: to experts, or from them.
struct RowsOfExchange {
  std::size_t layer = 0;
  std::uint64_t number = 0;
  bool out = true;
};

/// The ranks among which a model's experts are distributed (ExpertConfig::ranks), as a pass uses them. All of
/// them go through passes of the same shape at the same time, each with tokens of its own: what one asks for
/// here the others ask for too, in the same order.
class ExpertPeers {
 public:
  virtual ~ExpertPeers() = default;

  /// Tells the others how many slots each expert of the layer has, and says which rows come here.
  virtual core::Result<PlannedRows> plan(std::size_t layer, const core::Dispatch& dispatch) = 0;
  /// Begins to give the others rows of `input`, of `row_bytes` each, and to take theirs into `output`, in the
  /// memory that the pass computes in. Both stay as they are until wait(); one exchange at a time. On a GPU
  /// the move has no lists of rows.
  virtual core::Result<void> begin_exchange(const RowsOfExchange& rows, std::span<const std::byte> input,
                                            std::span<std::byte> output, const core::RowMove& move,
                                            std::size_t row_bytes) = 0;
  virtual core::Result<void> wait() = 0;
  /// Where the gradient of an expert's parameter that this rank has is added, for tokens of the rank
  /// `source`, or of one of its pieces of sequences: floats, or what the pass computes with.
  virtual void* gradient(std::size_t parameter, std::size_t source) = 0;
};

/// Stands in for them in a pass that only warms a device up, before the first collective: one of each
/// microbatch has counted what this rank has, and nothing moves.
class AbsentPeers final : public ExpertPeers {
 public:
  /// Passes have up to `rows` tokens of a rank. Gradients of every expert are added to `gradient`. The
  /// configuration outlives it.
  AbsentPeers(const ExpertConfig& config, std::size_t rows, void* gradient)
      : config_(config), rows_(rows), gradient_(gradient) {}

  core::Result<PlannedRows> plan(std::size_t, const core::Dispatch& dispatch) override;
  core::Result<void> begin_exchange(const RowsOfExchange&, std::span<const std::byte>, std::span<std::byte>,
                                    const core::RowMove&, std::size_t) override {
    return {};
  }
  core::Result<void> wait() override { return {}; }
  void* gradient(std::size_t, std::size_t) override { return gradient_; }

 private:
  const ExpertConfig& config_;
  std::size_t rows_;
  void* gradient_;
};

}  // namespace troupe::apps::gpt
