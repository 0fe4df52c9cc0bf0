#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "core/trace.hpp"

namespace troupe::apps {

/// What one rank recorded.
struct RankTrace {
  core::Rank rank{};
  std::vector<core::TraceEvent> events;
};

/// All ranks in one trace in the Trace Event Format, which ui.perfetto.dev opens: a process per rank, a
/// thread per track, an arrow from span to span of each flow, a counter track per counter. Times begin at the
/// earliest event. Spans of one track that overlap without nesting are put on additional threads ("name
/// (2)"), because the format cannot show them on one.
std::string perfetto_json(const std::vector<RankTrace>& ranks);

/// Writes a rank's part as a file; merges all parts in a folder into one trace. Ranks share nothing but the
/// folder, so each writes its own part when it is done, and one of them merges.
core::Result<void> write_trace_part(const std::filesystem::path& folder, const RankTrace& trace);
core::Result<void> merge_trace_parts(const std::filesystem::path& folder,
                                     const std::filesystem::path& output);

}  // namespace troupe::apps
