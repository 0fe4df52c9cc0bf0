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

/// Writes a rank's part as a file. Ranks share nothing but the folder, so each writes its own part when it is
/// done, and one of them merges.
core::Result<void> write_trace_part(const std::filesystem::path& folder, const RankTrace& trace);
/// Merges the parts of the ranks of a job of this size into one trace, and removes those of other ranks,
/// which an earlier job left. A rank whose part is not in the folder, as on another node, is left out;
/// Errc::not_found if there is none, Errc::corrupt with the part's path.
core::Result<void> merge_trace_parts(const std::filesystem::path& folder, core::WorldSize ranks,
                                     const std::filesystem::path& output);

}  // namespace troupe::apps
