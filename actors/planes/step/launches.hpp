#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "actors/planes/step/communication.hpp"
#include "actors/planes/step/gradient_sums.hpp"
#include "actors/planes/step/step_verdict.hpp"
#include "actors/roles/work.hpp"

namespace troupe::actors {

/// Launches the entries of a rank's program: in a step when the Conductor asks, and between steps for
/// parameters that the trainer waits for. No strategy has code of its own.
class Launches {
 public:
  /// All must outlive it.
  Launches(const StepContext& in, Communication& communication, const GradientSums& sums,
           StepVerdict& verdict)
      : in_(in),
        communication_(communication),
        sums_(sums),
        verdict_(verdict),
        launched_ns_(in.tensors.plan.buckets.size()) {}

  void perform(const LaunchCollective& work);

  /// Brings what each rank has loaded of the parameters to all ranks that keep it. Before the first step, by
  /// all ranks alike. Ends in StateGathered to the trainer.
  void gather_parameters();
  /// Brings the full parameters of some buckets of one unit to this rank, between steps, by all ranks alike.
  /// Ends in StateGathered to the trainer. Returns the slot they are gathered into.
  int gather_unit(const std::vector<core::BucketIndex>& buckets);
  /// A round in which ranks exchange what they have read from a checkpoint. Before the first step, by all
  /// ranks alike. Ends in LoadedShared to the trainer.
  void exchange_loaded(LoadedBytes bytes);

  /// When the last LaunchCollective that reduces the bucket's gradients was performed, by the device's clock;
  /// 0: never.
  std::chrono::nanoseconds last_launch(core::BucketIndex bucket) const {
    return std::chrono::nanoseconds(launched_ns_[bucket].load());
  }

 private:
  class Entry;

  void gather(const std::vector<core::PlanEntryIndex>& entries);
  template <class Over>
  void say_when_over(Flight flight, std::shared_ptr<const void> owner);
  void note_failure(const LaunchCollective& work);
  void trace(const LaunchCollective& work, const Flight& flight, std::chrono::nanoseconds end) const;

  const StepContext& in_;
  Communication& communication_;
  const GradientSums& sums_;
  StepVerdict& verdict_;
  core::List<core::BucketIndex, std::atomic<std::int64_t>> launched_ns_;
  std::size_t exchanges_ = 0;                       ///< launched so far; only the Conductor launches
  std::size_t carries_ = 0;                         ///< as above
  std::map<core::BucketIndex, std::size_t> carry_;  ///< credit of the sums that go on to the next axis
};

}  // namespace troupe::actors
