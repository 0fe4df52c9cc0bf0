#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/experts/exchange.hpp"
#include "core/ids.hpp"

namespace troupe::actors {

struct ExpertGroupConfig {
  core::Rank rank{};
  std::uint32_t layer = 0;
  core::ExpertSpread spread;        ///< of the experts among `members`
  std::vector<core::Rank> members;  ///< of the group that shares the experts, this rank among them
  std::size_t place = 0;            ///< of this rank among them
  /// Rows that may come to a rank's experts in one exchange.
  std::int64_t most_rows = 0;
  /// Exchanges of a step that may be open at once, until their rows have come back twice: each is a credit
  /// for so many rows.
  std::size_t most_exchanges = 1;
  /// Exchanges in no step that are open at once: those of this rank's pieces of a lane, one after another.
  std::size_t pieces = 1;
  double bias_rate = 0;  ///< by which a committed step moves the router's biases; 0: it has none
};

/// One layer's experts on one rank: idle -> counting -> exchanging -> computing -> combining -> idle, for the
/// exchange that moved last; failed once the rank is fenced. It decides on facts alone, and its host runs on
/// the trainer's thread, where rows move.
///
/// EG-1: every row comes back once, or is counted as dropped: a step with an exchange that has not come back
/// is refused. EG-2: rows move only after every member's counts are known; back only after out. EG-3: biases
/// move once per committed step, by the counts of all ranks, so they are alike everywhere. EG-4: after an
/// abort no row of the step is handed out.
class ExpertGroupMachine final : public Machine {
 public:
  explicit ExpertGroupMachine(ExpertGroupConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

  /// Why the step must not be committed; empty: nothing is wrong.
  const std::string& refusal() const { return refusal_; }
  /// The first exchange of the step whose rows have not come back, as a clause; empty: all have.
  std::string unreturned() const;
  /// The choices of this rank's tokens in the step.
  const std::vector<std::int64_t>& chosen() const { return chosen_; }
  const std::vector<std::int64_t>& dropped() const { return dropped_; }

 private:
  enum class State : std::uint8_t { idle, counting, exchanging, computing, combining, failed };
  enum class Place : std::uint8_t { counting, planned, leaving, out, returning, back };
  struct Exchange {
    core::Lane lane{-1};
    std::vector<std::int64_t> sent;      ///< rows to each member, when they go out
    std::vector<std::int64_t> received;  ///< from each
    Place place = Place::counting;
    bool has_returned = false;
  };

  void on(const messages::StepBegan& begun);
  void on(const messages::RowsCounted& counted, Outbox& outbox);
  void on(const messages::CountsKnown& known, Outbox& outbox);
  void on(const messages::RowsWanted& wanted, Outbox& outbox);
  void on(const messages::RowsArrived& arrived);
  void on(const messages::LoadCounted& counted);
  void on(const messages::StepDecided& decided, Outbox& outbox);
  void on(const messages::ExpertsRestored& restored, Outbox& outbox);
  void fail(const messages::Failure& failure);
  void refuse(std::uint64_t exchange, core::Errc code, std::string reason, Outbox& outbox) const;
  std::string overflow(const std::vector<std::vector<std::int64_t>>& counts) const;
  void keep(core::Step step, bool moved, Outbox& outbox) const;
  static bool is_training(const Exchange& exchange) { return exchange.lane.value != -1; }
  std::int64_t of_others(const std::vector<std::int64_t>& rows) const;
  bool is_planned(const messages::RowsWanted& wanted, const Exchange& exchange) const;

  ExpertGroupConfig config_;
  core::ExpertOwners owners_;  ///< of parts of experts, whose rows are counted and exchanged
  State state_ = State::idle;
  core::Step step_{-1};
  core::Step decided_{-1};
  std::map<std::uint64_t, Exchange> exchanges_;
  std::uint64_t last_ = 0;  ///< the exchange that was begun last
  std::uint64_t current_ = 0;
  std::vector<std::int64_t> chosen_, dropped_;  ///< this rank's, of the step
  messages::LoadSummed summed_;                 ///< all ranks'
  std::vector<float> bias_;
  std::vector<std::int64_t> all_chosen_, all_dropped_;  ///< all ranks', since the run began
  std::string refusal_;
  messages::Failure failure_;
};

}  // namespace troupe::actors
