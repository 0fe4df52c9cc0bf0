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
/// earliest event. Spans of one track which overlap without nesting are laid on threads of their own ("name
/// (2)"), since the format has no place for them on one.
std::string perfetto_json(const std::vector<RankTrace>& ranks);

/// A rank's part, as a file; and all parts of a folder as one trace. Ranks share nothing but the folder, so
/// each writes its own part when it is done, and one of them merges.
core::Result<void> write_trace_part(const std::filesystem::path& folder, const RankTrace& trace);
core::Result<void> merge_trace_parts(const std::filesystem::path& folder,
                                     const std::filesystem::path& output);

}  // namespace troupe::apps
