#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/ids.hpp"
#include "core/options/options.hpp"

namespace troupe::actors {

struct GradientBucketConfig {
  core::Rank rank{};
  core::BucketIndex bucket{};
  std::vector<core::ParameterIndex> parameters;
  std::vector<std::string> names;  ///< of the parameters, in the same order, for messages
  /// A round that the rank goes through.
  struct Round {
    core::Lane lane{-1};  ///< the lane it plays; -1: none
    /// The program's entries that reduce the bucket's gradients in this round, in order.
    std::vector<core::PlanEntryIndex> entries;
  };
  std::vector<Round> rounds;  ///< the last one has entries; the others all do, or none does
  bool overlap = true;        ///< launch from backward; otherwise when backward has ended
  core::UnusedParameters unused = core::UnusedParameters::refuse;
};

/// Counts the gradients of one bucket and says when it may be reduced: counting -> ready -> reduced.
///
/// The bucket learns how often a parameter's gradient comes in a lane from the first lane that uses it. Once
/// it knows this of all its parameters, it is ready when the last expected gradient has come (GB-1: a bucket
/// is launched once per step, after exactly the learned number of gradients of its last lane; where each
/// round reduces, after every lane). GB-2: the bucket is called reduced only after the collective's
/// completion. GB-3: no gradient of a step is prepared before the shard has been stepped in the previous one,
/// which clears the bucket's gradients. A trainer that reads none of the bucket's parameters does not wait
/// for that.
class GradientBucketMachine final : public Machine {
 public:
  explicit GradientBucketMachine(GradientBucketConfig config);

  void receive(const messages::Envelope& envelope, Outbox& outbox) override;
  std::string_view state() const override;
  std::string waiting_for() const override;

 private:
  enum class State : std::uint8_t { idle, counting, ready, reduced };

  void on(const messages::StepBegan& begun);
  void on(const messages::GradientReady& ready, Outbox& outbox);
  void on(const messages::LaneEnded& ended, Outbox& outbox);
  void on(const messages::ShardStepped& stepped, Outbox& outbox);
  void on(const messages::CollectiveDone& done, Outbox& outbox);

  bool is_current(core::Step step, core::Lane lane) const;
  void begin_lane();
  void complete_lane(Outbox& outbox);
  void prepare_due(Outbox& outbox);
  void learn_or_check();
  void refuse(std::string reason);
  messages::Address peer(messages::Role role) const { return {config_.rank, role, 0}; }

  GradientBucketConfig config_;
  State state_ = State::idle;
  core::Step step_{-1};
  std::size_t round_ = 0;
  bool lane_complete_ = false;
  std::vector<std::size_t> due_;           ///< completed rounds, to be prepared in this order
  std::optional<core::Step> not_cleared_;  ///< whose gradients still occupy the place of the next ones
  std::vector<std::uint32_t> counts_;
  std::uint32_t outstanding_ = 0;  ///< gradients of this lane still expected; never 0 before all are learned
  std::vector<std::uint32_t> expected_;  ///< in a lane, of each parameter; 0: not learned yet
  std::size_t entries_done_ = 0;
  std::size_t entries_ = 0;  ///< of a step
  std::string refusal_;
};

}  // namespace troupe::actors
