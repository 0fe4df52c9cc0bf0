#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/report/run_record.hpp"

namespace troupe::apps {

/// The figures by which a run is judged. Shares are relative to the step time; medians are over all steps
/// except the first, which warms up.
struct RunSummary {
  std::int64_t steps = 0;
  std::int64_t refused_steps = 0;
  std::int64_t restarts = 0;
  std::optional<std::int64_t> target_tokens;  ///< that were learned from, if losses are means over tokens
  double seconds = 0;
  std::optional<double> loss;             ///< of the last step
  std::optional<double> evaluation_loss;  ///< the last one
  std::optional<double> best_evaluation_loss;
  double tokens_per_second = 0;  ///< median
  double step_seconds = 0;       ///< median
  double step_seconds_p99 = 0;
  double compute_share = 0;
  double exposed_share = 0;
  double optimizer_share = 0;
  double other_wait_share = 0;
  double hidden_share = 0;  ///< fraction of the communication that ran during something else
};

RunSummary summarize(const RunRecord& record);

/// The rows of the final table, name and value, ready for display.
std::vector<std::pair<std::string, std::string>> summary_rows(const RunSummary& summary);

/// The final table for a terminal, with its borders.
std::string summary_table(const RunRecord& record);

}  // namespace troupe::apps
