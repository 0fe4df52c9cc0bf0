#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "actors/session/session.hpp"
#include "apps/gpt/model/pass.hpp"
#include "apps/gpt/text/data.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

struct TrainerOptions;

/// What counts alike in a step's loss and its gradients. The router losses of experts are not of tokens: each
/// microbatch of each lane counts alike in their mean.
enum class LossAverage : std::uint8_t {
  tokens,  ///< the target tokens of all lanes: sums over them, divided by their number
  lanes,   ///< microbatches and lanes: a mean of their means
};
std::string_view name_of(LossAverage average);

/// How the passes of one step take part in its average.
class StepAverage {
 public:
  StepAverage() = default;
  /// Every rank finds the same from the text alone.
  StepAverage(const TrainerOptions& options, const TokenText& text, core::Step step, int lanes);

  /// Sets what the hooks say about losses.
  void set(StepHooks& hooks) const;
  /// The sum of the losses of a lane's microbatches, and their targets, in one piece of its sequences.
  struct Piece {
    double losses = 0;
    std::size_t targets = 0;
  };
  /// Ends a lane, with each of this rank's pieces.
  core::Result<void> end_lane(actors::Session& session, std::span<const Piece> pieces) const;

 private:
  std::optional<std::size_t> rows_;  ///< of a microbatch; none: its losses are means
  double router_factor_ = 1;
};

/// The mean over all targets of an evaluation.
class TargetMean {
 public:
  /// For microbatches of this many rows.
  explicit TargetMean(std::size_t rows) : rows_(rows) {}

  /// For passes whose losses are added.
  void set(StepHooks& hooks) const { hooks.loss_rows = rows_; }
  void add(double loss) { losses_ += loss; }
  void count(std::size_t targets) { targets_ += targets; }
  /// None without a target.
  std::optional<double> value() const;

 private:
  std::size_t rows_;
  double losses_ = 0;
  std::size_t targets_ = 0;
};

}  // namespace troupe::apps::gpt
