#include "apps/troupe/launch/local_ranks.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using actors::OutputStream;
using core::Result;

namespace {

/// Contiguous ranks share a NUMA node; empty when binding is not asked for.
std::vector<int> cpus_of(const Job& job, int slot) {
  if (job.options.numa_binding != "node") return {};
  const auto nodes = numa_nodes();
  if (nodes.size() < 2) return {};
  // A spare may come to have any rank.
  if (slot >= job.ranks) return {};
  return nodes[static_cast<std::size_t>(slot) * nodes.size() / static_cast<std::size_t>(job.ranks)];
}

}  // namespace

LocalRanks::LocalRanks(const Job& job, asio::io_context& loop, actors::Processes& processes,
                       const actors::Clock& clock, Terminal& terminal)
    : job_(job),
      processes_(processes),
      clock_(clock),
      terminal_(terminal),
      input_(loop),
      environment_(own_environment()),
      flight_(job) {}

void LocalRanks::begin(const Generation& generation) {
  generation_ = generation;
  flight_.begin(generation);
  oom_before_ = oom_kills();
  workers_.clear();
  workers_.resize(static_cast<std::size_t>(job_.ranks + job_.options.spares));
}

void LocalRanks::go_on(const Generation& generation) {
  // Those that are lost are gone by now; the others go on, and wait for a new process.
  look_at_processes(false);
  for (const std::string& line : flight_.conclude()) terminal_.say(line);
  generation_ = generation;
  flight_.begin(generation);
  oom_before_ = oom_kills();
  for (int rank = 0; rank < static_cast<int>(generation.seats.size()); ++rank) {
    const auto& seat = generation.seats[static_cast<std::size_t>(rank)];
    if (seat.node != job_.place.node) continue;
    Worker& worker = workers_[seat.slot - job_.place.first_slot];
    worker.rank = rank;
    if (worker.log) worker.log->becomes(numbers_of(generation, rank));
  }
}

Result<std::unique_ptr<actors::Process>> LocalRanks::start(actors::ProcessPlace place,
                                                           std::function<void(actors::ExitStatus)> exited) {
  const int slot = place.slot;
  const fs::path directory = rank_directory(job_, generation_.number, slot);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return core::fail(core::Errc::io, "cannot make {}: {}", directory.string(), error.message());
  // What the process before it in this slot has declared does not hold for this one.
  fs::remove(member_file(job_, slot), error);
  Worker& worker = workers_[slot];
  worker.generation = generation_.number;
  worker.rank = place.rank.value_or(job_.place.first_slot + slot);
  const auto numbers = place.rank ? std::optional(numbers_of(generation_, *place.rank)) : std::nullopt;
  worker.log = std::make_unique<RankLog>(job_, generation_.number, slot, numbers, terminal_, clock_);
  const bool is_first = job_.place.node == 0 && place.rank == 0;
  auto process = TRY(processes_.spawn(
      {job_.program, job_.arguments, rank_environment(job_, generation_, place, environment_),
       cpus_of(job_, slot), is_first ? input_.next() : -1},
      {.output = [log = worker.log.get()](OutputStream stream,
                                          std::string_view bytes) { log->output(stream, bytes); },
       .closed = [log = worker.log.get()](OutputStream stream) { log->finish(stream); },
       .exited = std::move(exited)}));
  worker.pid = process->pid();
  if (is_first) input_.is_handed_over();
  return process;
}

void LocalRanks::withheld(int slot, int signal) {
  terminal_.say(fmt::format("rank {} does not handle {}, or not yet: it was not sent, since it would end it",
                            workers_[slot].rank, actors::signal_name(signal)));
}

void LocalRanks::woken(int slot) {
  const Worker& worker = workers_[slot];
  terminal_.say(fmt::format(
      "rank {} (pid {}) was stopped (SIGSTOP) for seconds after others had ended well; SIGCONT lets "
      "it go on",
      worker.rank, worker.pid));
}

void LocalRanks::look_at_processes(bool with_threads) {
  std::map<int, std::int64_t> processes;
  for (std::size_t rank = 0; rank < generation_.seats.size(); ++rank) {
    const auto& seat = generation_.seats[rank];
    if (seat.node != job_.place.node) continue;
    const auto slot = static_cast<std::size_t>(seat.slot - job_.place.first_slot);
    if (slot < workers_.size()) processes[static_cast<int>(rank)] = workers_[slot].pid;
  }
  flight_.look(processes, with_threads);
}

/// Each rank looks where it was told to when it was started.
void LocalRanks::write_failure(const std::string& failure) {
  look_at_processes(true);
  std::set<int> generations{generation_.number};
  for (const Worker& worker : workers_) generations.insert(worker.generation);
  for (const int generation : generations) std::ofstream(failure_file(job_, generation)) << failure;
}

RankReport LocalRanks::report(int slot, const actors::Ending& ending) {
  const Worker& ended = workers_[slot];
  RankReport report{ending, job_.place.nodes > 1 ? host_name() : "", ended.pid, {}, {}, {}};
  if (ended.log) {
    for (OutputStream stream : {OutputStream::out, OutputStream::err}) ended.log->finish(stream);
    const auto& lines = ended.log->last_error_lines().lines();
    report.last_error_lines.assign(lines.begin(), lines.end());
  }
  const fs::path file = error_file(job_, ended.generation, slot);
  report.error_message = read_error_file(file);
  report.meaning = likely_meaning(ending.status, oom_before_, oom_kills());
  std::error_code ignored;
  if (!ending.status.success() && !fs::exists(file, ignored)) write_error_file(file, report);
  return report;
}

void LocalRanks::clear_away() {
  // What is cleared away are the records too.
  for (const std::string& line : flight_.conclude()) terminal_.say(line);
  const int cleared = processes_.clear_away(job_.id, mark_of(job_));
  if (cleared > 0) terminal_.say(fmt::format("killed {} processes the ranks left behind", cleared));
  for (Worker& worker : workers_) {
    if (!worker.log) continue;
    for (OutputStream stream : {OutputStream::out, OutputStream::err}) worker.log->finish(stream);
  }
}

}  // namespace troupe::apps
