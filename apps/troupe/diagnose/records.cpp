#include "apps/troupe/diagnose/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "actors/world/host_identity.hpp"
#include "core/errors.hpp"
#include "posix/process_identity.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using core::Result;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kProcesses = "processes.";
/// More than any record has.
constexpr std::size_t kMostBytes = std::size_t{16} << 20;

/// "<anything>.<epoch>.<rank>"
bool is_named_like_a_record(const std::string& name) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  const std::size_t rank = name.rfind('.');
  if (rank == std::string::npos || rank == 0) return false;
  const std::size_t epoch = name.rfind('.', rank - 1);
  return epoch != std::string::npos && is_number(std::string_view(name).substr(rank + 1)) &&
         is_number(std::string_view(name).substr(epoch + 1, rank - epoch - 1));
}

Result<std::vector<std::byte>> bytes_of(const fs::path& file) {
  std::error_code error;
  const auto status = fs::status(file, error);
  if (!fs::exists(status)) return core::fail(core::Errc::not_found, "its rank has not made it, or has ended");
  if (!fs::is_regular_file(status)) return core::fail(core::Errc::corrupt, "it is not a file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return core::fail(core::Errc::io, "it cannot be opened: look at its owner and mode");
  std::vector<std::byte> bytes(std::min<std::uintmax_t>(fs::file_size(file, error), kMostBytes));
  if (error) return core::fail(core::Errc::io, "{}", error.message());
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  return bytes;
}

/// An entry that was written meanwhile is whole the next time.
Result<gpu::RecordedRank> read_record(const fs::path& file) {
  constexpr int kTries = 3;
  for (int i = 1;; ++i) {
    auto record = TRY(gpu::read_flight_record(TRY(bytes_of(file))));
    const bool is_whole =
        std::ranges::all_of(record.groups, [](const auto& group) { return group.torn == 0; });
    if (is_whole || i == kTries) return record;
  }
}

class Search {
 public:
  void look_in(const fs::path& folder, bool has_records_alone) {
    std::error_code error;
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      files.push_back(entry->path());
    if (error) problems_.push_back(fmt::format("{}: {}", folder.string(), error.message()));
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      const std::string name = file.filename();
      if (name.starts_with(kProcesses)) {
        read_facts(file);
      } else if (has_records_alone || is_named_like_a_record(name)) {
        read(file);
      }
    }
  }

  void look_for(const fs::path& prefix) {
    std::error_code error;
    const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename();
      const std::string begin = prefix.filename().string() + ".";
      if (name.starts_with(begin) && is_named_like_a_record(name)) files.push_back(entry->path());
    }
    if (files.empty()) {
      problems_.push_back(fmt::format("{}: it is not a folder, and no record has a path that begins with it",
                                      prefix.string()));
    }
    std::ranges::sort(files);
    for (const fs::path& file : files) read(file);
  }

  FoundRecords conclude() {
    FoundRecords found;
    found.evidence.looked_wall_ns = wall_now();
    choose(found.evidence);
    add_facts(found.evidence);
    note_gaps(found.evidence);
    found.problems = std::move(problems_);
    return found;
  }

 private:
  void read(const fs::path& file) {
    auto record = read_record(file);
    if (record) {
      records_.push_back({file, *std::move(record)});
    } else {
      problems_.push_back(fmt::format("{}: {}", file.string(), record.error().message));
    }
  }

  void read_facts(const fs::path& file) {
    std::ifstream stream(file);
    const Json json = Json::parse(stream, nullptr, false);
    const auto number = [&](const char* name) -> std::optional<std::int64_t> {
      if (!json.is_object() || !json.contains(name) || !json[name].is_number_integer()) return std::nullopt;
      return json[name].get<std::int64_t>();
    };
    const auto epoch = number("epoch");
    const auto wall = number("wall_ns");
    if (!epoch || !wall || !json.contains("ranks") || !json["ranks"].is_object()) {
      problems_.push_back(
          fmt::format("{}: it is not what a launcher writes of its processes", file.string()));
      return;
    }
    SeenProcesses seen{static_cast<std::uint64_t>(*epoch), *wall, {}};
    for (const auto& [rank, facts] : json["ranks"].items()) {
      const auto known = facts_from_json(facts);
      char* end = nullptr;
      const long number_of_rank = std::strtol(rank.c_str(), &end, 10);
      if (known && *end == '\0') seen.ranks[static_cast<int>(number_of_rank)] = *known;
    }
    seen_.push_back(std::move(seen));
  }

  /// The last epoch of the job whose record is newest.
  void choose(Evidence& evidence) {
    if (records_.empty()) return;
    const auto newest =
        std::ranges::max_element(records_, {}, [](const Found& each) { return each.record.opened_wall_ns; });
    const std::string job = newest->record.job;
    std::uint64_t epoch = 0;
    for (const Found& each : records_) {
      if (each.record.job == job) epoch = std::max(epoch, each.record.epoch.value);
    }
    std::map<int, const Found*> by_rank;
    std::set<std::string> others;
    for (const Found& each : records_) {
      const auto& record = each.record;
      if (record.job != job) others.insert(fmt::format("job {}", record.job));
      if (record.job == job && record.epoch.value != epoch)
        others.insert(fmt::format("epoch {} of this job", record.epoch.value));
      if (record.job != job || record.epoch.value != epoch) continue;
      const Found*& kept = by_rank[record.rank.value];
      if (kept != nullptr)
        problems_.push_back(fmt::format("{} and {} are both of rank {}: the newer one counts",
                                        kept->file.string(), each.file.string(), record.rank.value));
      if (kept == nullptr || kept->record.opened_wall_ns < record.opened_wall_ns) kept = &each;
    }
    for (const std::string& other : others)
      problems_.push_back(fmt::format("there are records of {} too, which do not count", other));
    for (const auto& [rank, each] : by_rank) evidence.ranks.push_back({each->record, std::nullopt});
  }

  /// Processes that are still here are looked at again, but what a launcher saw when the first one failed
  /// tells more than that all are gone now.
  void add_facts(Evidence& evidence) {
    const auto host = actors::host_identity().id;
    for (RankEvidence& rank : evidence.ranks) {
      for (const SeenProcesses& seen : seen_) {
        const auto found = seen.ranks.find(rank.record.rank.value);
        if (seen.epoch != rank.record.epoch.value || found == seen.ranks.end()) continue;
        rank.process = found->second;
        evidence.looked_wall_ns = std::min(evidence.looked_wall_ns, seen.wall_ns);
      }
      if (rank.process || rank.record.host != host) continue;
      auto facts = look_at_process({rank.record.pid, rank.record.process_start}, true);
      // Without a launcher that looked in time nobody knows which of those that are gone was the first.
      const bool has_gone_before = facts.is_gone() && rank.record.phase == gpu::FlightPhase::left;
      if (!has_gone_before) rank.process = std::move(facts);
    }
    const auto is_gone = [](const RankEvidence& rank) { return !rank.process || rank.process->is_gone(); };
    if (seen_.empty() && std::ranges::all_of(evidence.ranks, is_gone)) {
      for (RankEvidence& rank : evidence.ranks) rank.process.reset();
    }
  }

  void note_gaps(const Evidence& evidence) {
    if (evidence.ranks.empty()) return;
    std::vector<core::Rank> missing;
    const int world = evidence.ranks.front().record.world.value;
    std::size_t next = 0;
    // A record may say anything of the world.
    constexpr int kMost = 1 << 20;
    for (int rank = 0; rank < std::min(world, kMost); ++rank) {
      if (next < evidence.ranks.size() && evidence.ranks[next].record.rank.value == rank) {
        next += 1;
      } else {
        missing.push_back({rank});
      }
    }
    if (!missing.empty()) {
      problems_.push_back(fmt::format("{} of {} {} no record here", names_of(missing), world,
                                      missing.size() == 1 ? "has" : "have"));
    }
    for (const RankEvidence& rank : evidence.ranks) {
      for (const auto& group : rank.record.groups) {
        if (group.torn > 0)
          problems_.push_back(fmt::format("rank {}: {} operations of group {} are not whole",
                                          rank.record.rank.value, group.torn, group.name));
      }
      if (rank.record.groups_left_out > 0)
        problems_.push_back(fmt::format("rank {}: {} of its groups found no room in the record",
                                        rank.record.rank.value, rank.record.groups_left_out));
    }
  }

  struct Found {
    fs::path file;
    gpu::RecordedRank record;
  };
  std::vector<Found> records_;
  std::vector<SeenProcesses> seen_;
  std::vector<std::string> problems_;
};

}  // namespace

FoundRecords find_records(const std::vector<fs::path>& places) {
  Search search;
  std::error_code error;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place, error)) {
      search.look_for(place);
      continue;
    }
    search.look_in(place, false);
    if (fs::is_directory(place / "flight", error)) search.look_in(place / "flight", true);
  }
  return search.conclude();
}

fs::path record_path(const fs::path& prefix, std::uint64_t epoch, int rank) {
  return fmt::format("{}.{}.{}", prefix.string(), epoch, rank);
}

void write_facts(const fs::path& folder, const SeenProcesses& seen) {
  Json ranks = Json::object();
  for (const auto& [rank, facts] : seen.ranks) ranks[std::to_string(rank)] = to_json(facts);
  const Json json = {{"epoch", seen.epoch}, {"wall_ns", seen.wall_ns}, {"ranks", std::move(ranks)}};
  std::ofstream(folder / fmt::format("{}{}.json", kProcesses, seen.epoch))
      << json.dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
}

std::int64_t wall_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace troupe::apps
