#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "apps/report/run_record.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// A page of apps/report/page/ with its style, its script and its data (JSON) embedded: it needs no network
/// and no other file.
std::string fill_page(std::string_view html, std::string_view script, std::string_view data);

/// The run as one page that needs no network and no other file.
std::string render_html(const RunRecord& record);

/// Writes the page of the record at `record_path` to `page_path`.
core::Result<void> write_report(const std::filesystem::path& record_path,
                                const std::filesystem::path& page_path);

}  // namespace troupe::apps
