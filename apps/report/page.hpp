#pragma once

#include <string_view>

/// The files of apps/report/page/, as the build embeds them.
namespace troupe::apps::page {

extern const std::string_view kHtml;
extern const std::string_view kStyle;
extern const std::string_view kPlots;
extern const std::string_view kReport;
extern const std::string_view kCapacityHtml;
extern const std::string_view kCapacity;

}  // namespace troupe::apps::page
