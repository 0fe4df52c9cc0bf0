#include "actors/session/pace.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe::actors {

using namespace std::chrono_literals;

void Pace::step_begins(std::chrono::nanoseconds now) {
  if (last_over_) prepares_ = now - *last_over_;
}

std::optional<messages::StepsTimed> Pace::step_over(std::chrono::nanoseconds now, core::Rank rank,
                                                    const StepTimes& times, int lanes) {
  const bool is_first = !last_over_;
  last_over_ = now;
  if (is_first) last_told_ = now;
  // The first step loads, allocates and warms up what later ones have.
  if (is_first || lanes == 0) return std::nullopt;
  computed_ += times.compute() / lanes;
  taken_ += times.total + prepares_;
  if (times.run_delay) {
    looked_at_ += times.compute();
    run_delay_ += std::min(*times.run_delay, times.compute());
  }
  prepared_.push_back(prepares_ / lanes);
  const auto steps = prepared_.size();
  if (now - last_told_ < interval_ || steps < kLeastSteps) return std::nullopt;
  last_told_ = now;
  const auto middle = prepared_.begin() + static_cast<std::ptrdiff_t>(steps / 2);
  std::nth_element(prepared_.begin(), middle, prepared_.end());
  const auto count = static_cast<std::int64_t>(steps);
  const auto computed = computed_ / count;
  const double delayed = looked_at_ > 0ns ? double(run_delay_ / 1ns) / double(looked_at_ / 1ns) : 0;
  const messages::StepsTimed timed{rank,
                                   steps,
                                   static_cast<std::uint32_t>(lanes),
                                   (*middle + computed) / 1ns,
                                   static_cast<std::int64_t>(delayed * double(computed / 1ns)),
                                   taken_ / 1ns / count};
  prepared_.clear();
  computed_ = taken_ = looked_at_ = run_delay_ = {};
  return timed;
}

}  // namespace troupe::actors
