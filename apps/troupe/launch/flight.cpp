#include "apps/troupe/launch/flight.hpp"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "apps/troupe/diagnose/diagnosis.hpp"
#include "core/errors.hpp"
#include "posix/process_identity.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;

void FlightRecords::begin(const Generation& generation) {
  std::error_code ignored;
  for (const int rank : ranks_) fs::remove(record_path(flight_record(job_), epoch_, rank), ignored);
  epoch_ = epoch_of(generation.number).value;
  ranks_.clear();
  has_looked_ = false;
  seen_ = {};
  for (std::size_t rank = 0; rank < generation.seats.size(); ++rank) {
    if (generation.seats[rank].node == job_.place.node) ranks_.push_back(static_cast<int>(rank));
  }
  if (job_.directory_is_temporary) return;
  fs::create_directories(folder(), ignored);
  for (const int rank : ranks_) {
    const auto file = record_path(flight_record(job_), epoch_, rank);
    fs::create_symlink(file, record_path(folder() / "rank", epoch_, rank), ignored);
  }
}

void FlightRecords::look(const std::map<int, std::int64_t>& processes, bool with_threads) {
  if (std::exchange(has_looked_, true)) return;
  seen_.epoch = epoch_;
  seen_.wall_ns = wall_now();
  for (const auto& [rank, pid] : processes) {
    // One that is gone without a trace has no start time any more.
    const auto process = posix::identify(pid);
    seen_.ranks[rank] = process ? look_at_process(*process, with_threads) : ProcessFacts{};
  }
  if (!job_.directory_is_temporary) write_facts(folder(), seen_);
}

std::vector<std::string> FlightRecords::conclude() {
  const auto prefix = flight_record(job_);
  keep();
  if (!has_looked_) return {};
  auto found = find_records({prefix});
  if (found.evidence.ranks.empty() || found.evidence.ranks.front().record.epoch.value != epoch_) return {};
  for (RankEvidence& rank : found.evidence.ranks) {
    const auto seen = seen_.ranks.find(rank.record.rank.value);
    if (seen != seen_.ranks.end()) rank.process = seen->second;
  }
  found.evidence.looked_wall_ns = seen_.wall_ns;
  found.evidence.patience = std::chrono::seconds(1);
  const Diagnosis diagnosis = diagnose(found.evidence);
  if (diagnosis.kind == Diagnosis::Kind::nothing) return {};
  return {"by the flight records: " + diagnosis.sentence};
}

/// Copies take the place of the links, if anything has failed.
void FlightRecords::keep() const {
  if (job_.directory_is_temporary) return;
  std::error_code error;
  for (const int rank : ranks_) {
    const auto from = record_path(flight_record(job_), epoch_, rank);
    const auto to = record_path(folder() / "rank", epoch_, rank);
    fs::remove(to, error);
    if (has_looked_ && fs::exists(from, error)) fs::copy_file(from, to, error);
  }
  if (fs::is_empty(folder(), error)) fs::remove(folder(), error);
}

}  // namespace troupe::apps
