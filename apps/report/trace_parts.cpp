#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
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

std::filesystem::path part_path(const std::filesystem::path& folder, core::Rank rank) {
  return folder / ("rank-" + std::to_string(rank.value) + std::string(kSuffix));
}

Result<void> write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail(Errc::io, "cannot write the trace {}: {}", path.string(), std::strerror(errno));
  return {};
}

Result<RankTrace> read_part(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return fail(Errc::not_found, "expected a rank's part of a trace at {}, found none", path.string());
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
  return write_file(part_path(folder, trace.rank), part.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<void> merge_trace_parts(const std::filesystem::path& folder, core::WorldSize ranks,
                               const std::filesystem::path& output) {
  std::vector<RankTrace> parts;
  std::set<std::filesystem::path> own;
  for (std::int32_t rank = 0; rank < ranks.value; ++rank) {
    const auto path = part_path(folder, {rank});
    own.insert(path);
    auto part = read_part(path);
    if (part) parts.push_back(*std::move(part));
    if (!part && part.error().code != Errc::not_found) return tl::unexpected(std::move(part).error());
  }
  if (parts.empty()) {
    return fail(Errc::not_found, "there are no parts of a trace (*{}) of ranks 0 to {} in {}", kSuffix,
                ranks.value - 1, folder.string());
  }
  TRY(write_file(output, perfetto_json(parts)));
  std::vector<std::filesystem::path> of_earlier_jobs;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const bool is_part = entry.path().extension() == kSuffix;
    if (is_part && !own.contains(entry.path())) of_earlier_jobs.push_back(entry.path());
  }
  std::error_code ignored;
  for (const auto& path : of_earlier_jobs) std::filesystem::remove(path, ignored);
  return {};
}

}  // namespace troupe::apps
