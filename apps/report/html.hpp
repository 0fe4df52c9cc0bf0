#pragma once

#include <filesystem>
#include <string>

#include "apps/report/run_record.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// The run as one page which needs nothing else: no network, no other file.
std::string render_html(const RunRecord& record);

/// Writes the page of the record at `record_path` to `page_path`.
core::Result<void> write_report(const std::filesystem::path& record_path,
                                const std::filesystem::path& page_path);

}  // namespace troupe::apps
