#include "apps/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/report/progress.hpp"

namespace troupe::apps {

namespace {

/// The value below which `share` of the values are (nearest rank); 0 if there are none.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::vector<double> column(const std::vector<StepRecord>& steps, double StepRecord::*member) {
  std::vector<double> values;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) values.push_back(steps[i].*member);
  return values;
}

double total(const std::vector<StepRecord>& steps, double StepRecord::*member) {
  double sum = 0;
  for (double value : column(steps, member)) sum += value;
  return sum;
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

std::string milliseconds_text(double seconds) {
  return fmt::format("{:.4g} ms", 1000 * seconds);
}
std::string percent_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}
std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "-";
}

}  // namespace

RunSummary summarize(const RunRecord& record) {
  const std::vector<StepRecord>& steps = record.steps;
  RunSummary summary;
  for (const StepRecord& step : steps) {
    if (!step.committed) ++summary.refused_steps;
    if (step.committed && step.target_tokens)
      summary.target_tokens = summary.target_tokens.value_or(0) + *step.target_tokens;
    if (!step.evaluation_loss) continue;
    summary.evaluation_loss = step.evaluation_loss;
    if (std::isnan(*step.evaluation_loss)) continue;
    summary.best_evaluation_loss =
        std::min(summary.best_evaluation_loss.value_or(*step.evaluation_loss), *step.evaluation_loss);
  }
  for (const RunEvent& event : record.events) summary.restarts += event.kind == "restart" ? 1 : 0;
  if (steps.empty()) return summary;
  summary.steps = steps.back().step + 1;  // a process that was killed may not have recorded its last ones
  summary.loss = steps.back().loss;
  summary.seconds = steps.back().seconds_since_start;
  summary.tokens_per_second = quantile(column(steps, &StepRecord::tokens_per_second), 0.5);
  summary.step_seconds = quantile(column(steps, &StepRecord::step_seconds), 0.5);
  summary.step_seconds_p99 = quantile(column(steps, &StepRecord::step_seconds), 0.99);
  const double all = total(steps, &StepRecord::step_seconds);
  const double exposed = total(steps, &StepRecord::exposed_communication_seconds);
  const double communication = total(steps, &StepRecord::communication_seconds);
  summary.compute_share = share(total(steps, &StepRecord::compute_seconds), all);
  summary.exposed_share = share(exposed, all);
  summary.optimizer_share = share(total(steps, &StepRecord::optimizer_seconds), all);
  summary.other_wait_share = share(total(steps, &StepRecord::other_wait_seconds), all);
  summary.hidden_share = std::max(0.0, share(communication - exposed, communication));
  return summary;
}

std::vector<std::pair<std::string, std::string>> summary_rows(const RunSummary& summary) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"steps", fmt::format("{}", summary.steps)},
      {"time", clock_text(std::chrono::seconds(std::llround(summary.seconds)))},
      {"loss", loss_text(summary.loss)},
      {"evaluation loss", loss_text(summary.evaluation_loss)},
      {"best evaluation loss", loss_text(summary.best_evaluation_loss)},
      {"tokens/s (median)", short_number(summary.tokens_per_second)},
      {"step time (median)", milliseconds_text(summary.step_seconds)},
      {"step time (p99)", milliseconds_text(summary.step_seconds_p99)},
      {"compute", percent_text(summary.compute_share)},
      {"exposed communication", percent_text(summary.exposed_share)},
      {"exposed optimizer", percent_text(summary.optimizer_share)},
      {"other waits", percent_text(summary.other_wait_share)},
      {"communication hidden", percent_text(summary.hidden_share)},
  };
  if (summary.target_tokens) rows.emplace_back("target tokens", fmt::format("{}", *summary.target_tokens));
  if (summary.refused_steps > 0) rows.emplace_back("refused steps", fmt::format("{}", summary.refused_steps));
  if (summary.restarts > 0) rows.emplace_back("restarts", fmt::format("{}", summary.restarts));
  return rows;
}

std::string summary_table(const RunRecord& record) {
  const auto rows = summary_rows(summarize(record));
  std::size_t names = 0;
  std::size_t values = 0;
  for (const auto& [name, value] : rows) {
    names = std::max(names, name.size());
    values = std::max(values, value.size());
  }
  const auto border = [&](const char* left, const char* middle, const char* right) {
    return fmt::format("{}{:─>{}}{}{:─>{}}{}\n", left, "", names + 2, middle, "", values + 2, right);
  };
  std::string table = border("┌", "┬", "┐");
  for (const auto& [name, value] : rows) {
    table += fmt::format("│ {:<{}} │ {:>{}} │\n", name, names, value, values);
  }
  return table + border("└", "┴", "┘");
}

}  // namespace troupe::apps
