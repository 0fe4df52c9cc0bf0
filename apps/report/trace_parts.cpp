#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/report/perfetto.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::fail;
using core::Result;
using core::TraceEvent;
using nlohmann::json;

namespace {

constexpr std::string_view kSuffix = ".trace-part";

Result<void> write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail(Errc::io, "cannot write the trace {}: {}", path.string(), std::strerror(errno));
  return {};
}

Result<RankTrace> read_part(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  try {
    const json part = json::parse(file);
    RankTrace trace{.rank = {part.at("rank").get<std::int32_t>()}, .events = {}};
    for (const json& event : part.at("events")) {
      trace.events.push_back({.kind = static_cast<TraceEvent::Kind>(event.at(0).get<int>()),
                              .track = event.at(1).get<std::string>(),
                              .name = event.at(2).get<std::string>(),
                              .begin = std::chrono::nanoseconds(event.at(3).get<std::int64_t>()),
                              .end = std::chrono::nanoseconds(event.at(4).get<std::int64_t>()),
                              .value = event.at(5).is_null() ? 0 : event.at(5).get<double>(),
                              .flow = event.at(6).get<std::uint64_t>()});
    }
    return trace;
  } catch (const json::exception& error) {
    return fail(Errc::corrupt, "{} is not a rank's part of a trace: {}", path.string(), error.what());
  }
}

}  // namespace

Result<void> write_trace_part(const std::filesystem::path& folder, const RankTrace& trace) {
  json events = json::array();
  for (const TraceEvent& event : trace.events) {
    events.push_back({static_cast<int>(event.kind), event.track, event.name, event.begin.count(),
                      event.end.count(), event.value, event.flow});
  }
  const json part = {{"rank", trace.rank.value}, {"events", std::move(events)}};
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return write_file(folder / ("rank-" + std::to_string(trace.rank.value) + std::string(kSuffix)),
                    part.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<void> merge_trace_parts(const std::filesystem::path& folder, const std::filesystem::path& output) {
  std::vector<RankTrace> ranks;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (entry.path().extension() == kSuffix) ranks.push_back(TRY(read_part(entry.path())));
  }
  if (failure || ranks.empty()) {
    return fail(Errc::not_found, "there are no parts of a trace (*{}) in {}", kSuffix, folder.string());
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  return write_file(output, perfetto_json(ranks));
}

}  // namespace troupe::apps
