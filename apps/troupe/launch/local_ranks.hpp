#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/world/clock.hpp"
#include "actors/world/process.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "apps/troupe/launch/environment.hpp"
#include "apps/troupe/launch/flight.hpp"
#include "apps/troupe/launch/input.hpp"
#include "apps/troupe/launch/rank_log.hpp"
#include "apps/troupe/launch/report.hpp"
#include "apps/troupe/launch/terminal.hpp"
#include "core/list.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// The processes of this node: what each is started with, and where goes what it says. Ranks are the job's; a
/// process keeps its slot, which here is one of this node.
class LocalRanks {
 public:
  /// All must outlive this. The job's place is known before begin().
  LocalRanks(const Job& job, asio::io_context& loop, actors::Processes& processes, const actors::Clock& clock,
             Terminal& terminal);

  void begin(const Generation& generation);
  /// The ranks that run stay in this generation, in which they may be others; those that are started from now
  /// on belong to it.
  void go_on(const Generation& generation);
  core::Result<std::unique_ptr<actors::Process>> start(actors::ProcessPlace place,
                                                       std::function<void(actors::ExitStatus)> exited);
  /// What this launcher says of the process in a slot.
  void withheld(int slot, int signal);
  void woken(int slot);
  /// Tells the ranks which of the job's has failed, and looks at their processes; before they are asked to
  /// end.
  void write_failure(const std::string& failure);
  /// What is known of the process in this slot, which has ended as `ending` says. Writes its error file if it
  /// could not.
  RankReport report(int slot, const actors::Ending& ending);
  /// No rank is running: kills what they left behind.
  void clear_away();

 private:
  void look_at_processes(bool with_threads);

  struct Worker {
    std::unique_ptr<RankLog> log;
    std::int64_t pid = 0;
    int generation = 0;  ///< in which it was started
    int rank = 0;        ///< in the job
  };

  const Job& job_;
  actors::Processes& processes_;
  const actors::Clock& clock_;
  Terminal& terminal_;
  Input input_;
  std::vector<std::string> environment_;
  Generation generation_;
  FlightRecords flight_;
  core::List<int, Worker> workers_;  ///< by slot
  OomKills oom_before_;
};

}  // namespace troupe::apps
