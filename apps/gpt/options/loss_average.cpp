#include "apps/gpt/options/loss_average.hpp"

#include <vector>

#include "apps/gpt/options/run_options.hpp"
#include "core/errors.hpp"

namespace troupe::apps::gpt {

std::string_view name_of(LossAverage average) {
  return average == LossAverage::tokens ? "tokens" : "lanes";
}

// What the session divides by is the number of targets, so router losses are multiplied by how many a
// microbatch has on average.
StepAverage::StepAverage(const TrainerOptions& options, const TokenText& text, core::Step step, int lanes) {
  if (options.loss_average == LossAverage::lanes) return;
  rows_ = options.microbatch.rows();
  if (options.model.experts.count == 0) return;
  const int microbatches = options.session.training.microbatches;
  std::size_t targets = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int m = 0; m < microbatches; ++m)
      targets += targets_at_random(text, options.microbatch,
                                   {options.seed, step, core::Lane{lane}, static_cast<std::uint32_t>(m)});
  }
  const double all = static_cast<double>(*rows_) * lanes * microbatches;
  router_factor_ = static_cast<double>(targets) / all;
}

void StepAverage::set(StepHooks& hooks) const {
  hooks.loss_rows = rows_;
  hooks.router_factor = router_factor_;
}

core::Result<void> StepAverage::end_lane(actors::Session& session, std::span<const Piece> pieces) const {
  std::vector<actors::PieceLoss> told;
  for (const auto& [losses, targets] : pieces) {
    if (rows_) {
      told.push_back({losses, static_cast<double>(targets)});
    } else {
      told.push_back({losses / session.training().microbatches});
    }
  }
  return session.end_lane(told);
}

std::optional<double> TargetMean::value() const {
  if (targets_ == 0) return std::nullopt;
  return losses_ / (static_cast<double>(targets_) / static_cast<double>(rows_));
}

}  // namespace troupe::apps::gpt
