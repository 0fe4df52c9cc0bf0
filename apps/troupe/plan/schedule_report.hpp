#pragma once

#include <string>

#include "core/result.hpp"

namespace troupe::apps {

struct ScheduleArguments {
  std::string kind = "1f1b";
  int stages = 4;
  int chunks = 1;
  int microbatches = 8;
  double forward_ms = 1;   ///< of one chunk, as the other two
  double backward_ms = 2;  ///< of inputs and weights
  double weight_ms = 1;    ///< the weights' part of it
  double transfer_ms = 0;
  bool json = false;
  std::string html;  ///< also writes a page there
};

/// What `troupe plan schedule` prints: a line per stage, what each keeps, and the bubble's share of the time,
/// by the clock and in theory. The schedule is checked first.
core::Result<std::string> report_schedule(const ScheduleArguments& arguments);

/// The same as one page that needs nothing else.
core::Result<std::string> schedule_page(const ScheduleArguments& arguments);

}  // namespace troupe::apps
