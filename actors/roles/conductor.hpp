#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

/// What the Conductor must know about an entry of the collective plan.
struct ConductorEntry {
  std::string name;         ///< for people: "reduce_scatter of bucket 3"
  messages::Address owner;  ///< gets CollectiveDone
  /// Entries that publish parameters are skipped when the step is not committed.
  bool only_if_committed = false;
  int stream = 0;                  ///< the stream that carries it; streams do not wait for each other
  std::uint64_t communicator = 0;  ///< see LaunchCollective
  std::uint64_t alike = 0;
  FinalSum final_sum = FinalSum::none;
};

struct ConductorConfig {
  core::Rank rank{};
  std::vector<ConductorEntry> entries;  ///< of one step, in the order of the program
  /// A launched collective that is not over after twice this time counts as hung.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

/// The only place that launches collectives: idle | launching | waiting | aborting.
///
/// CO-1: launches follow the program: an entry of a step is launched only when it is ready and everything
/// before it on its stream, of this and of all earlier steps, was launched or skipped. Entries may become
/// ready in any order. Members of a group have the same entries in the same order, and streams are such that
/// no two ranks can wait for each other's later entry (docs/program.md). The program is that of the
/// configuration, or in the order of OrderLearned.
class ConductorMachine final : public Machine {
 public:
  explicit ConductorMachine(ConductorConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  void timer(TimerId id, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  struct InFlight {
    core::Step step;
    core::PlanEntryIndex entry;
    std::uint64_t sequence;
  };
  /// What a stream launches next.
  struct Cursor {
    std::vector<core::PlanEntryIndex> entries;  ///< of the stream
    core::Step step{-1};
    std::size_t place = 0;
    core::PlanEntryIndex next() const { return entries[place]; }
  };
  static constexpr TimerId kWatchdog = 0;

  void follow(const std::vector<core::PlanEntryIndex>& launches);
  void on(const messages::StepBegan& begun, Outbox& outbox);
  void on(const messages::CollectiveReady& ready, Outbox& outbox);
  void on(const messages::CollectiveDone& done, Outbox& outbox);
  void on(const messages::StepDecided& decided, Outbox& outbox);
  void advance(Outbox& outbox);
  void advance(Cursor& cursor, Outbox& outbox);
  void fail(const InFlight& culprit, messages::Failure failure, Outbox& outbox);

  ConductorConfig config_;
  std::vector<core::Step> ready_;  ///< per entry, the latest step it is ready for
  std::vector<Cursor> cursors_;    ///< by stream
  bool begun_ = false;
  std::uint64_t sequence_ = 0;
  std::deque<InFlight> in_flight_;  // at most the entries of two steps
  std::uint64_t watched_ = 0;       ///< the launch the watchdog saw in flight when it was armed
  bool watching_ = false;
  core::Step refused_step_{-1};
  bool aborting_ = false;
};

}  // namespace troupe::actors
