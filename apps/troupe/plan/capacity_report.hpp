#pragma once

#include <string>

#include "apps/troupe/plan/capacity.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Tables for people, and which strategy to choose.
std::string capacity_table(const CapacityPlan& plan);
/// The same in bytes and seconds.
std::string capacity_json(const CapacityPlan& plan);
/// The same as one page with plots, which needs nothing else.
std::string capacity_page(const CapacityPlan& plan);

/// What `troupe plan capacity` prints. Writes the page where one is asked for.
core::Result<std::string> report_capacity(const CapacityArguments& arguments);

}  // namespace troupe::apps
