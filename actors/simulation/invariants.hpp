#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/roles/work.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/simulation/checkpoint_invariants.hpp"
#include "actors/simulation/credit_invariants.hpp"
#include "actors/simulation/expert_invariants.hpp"
#include "actors/simulation/replica_invariants.hpp"
#include "core/ids.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Watches everything that ranks send and request, and checks it against the invariants of
/// docs/architecture.md: FG-1 gradients that are also summed over a group beyond the data-parallel axes are
/// summed so once per step, between their last reduction and their optimizer; CO-1 the members of a
/// communicator launch the same in the same order; GB-1 a bucket is ready once per step; GB-3 a bucket is
/// prepared after the update of the previous step; RS-1 all ranks decide the same; RS-4 committed steps grow
/// by one; PS-3 a published bucket has the same bits on all ranks that keep the same part of it; CK-1 to CK-6
/// about saves; LT-1 to LT-4 about local saves; EG-1 to EG-4 about experts; and, for trainers that report
/// where they are, CO-1 by their programs, CR-1 and UG-1 about the slots of pools.
class InvariantMonitor {
 public:
  InvariantMonitor() = default;
  InvariantMonitor(const InvariantMonitor&) = delete;
  InvariantMonitor& operator=(const InvariantMonitor&) = delete;

  void on_message(core::Rank rank, const messages::Envelope& envelope);
  void on_work(const messages::Address& who, const Work& work);
  /// The rank publishes the bucket with these bits.
  void on_published(core::Rank rank, core::Step step, core::BucketIndex bucket,
                    RankWorld::PublishedBits bits);

  /// Whole sentences, each beginning with the invariant's name. At most a hundred are kept.
  const std::vector<std::string>& violations() const { return violations_; }
  void violate(std::string sentence);

  /// For roles that run on the trainer's thread.
  ExpertInvariants& experts() { return experts_; }
  /// For trainers that report where they are.
  CreditInvariants& credits() { return credits_; }

  core::Step last_committed() const { return last_committed_; }
  const std::vector<messages::SaveOver>& saves() const { return checkpoints_.saves(); }
  const std::vector<messages::LocalSaveOver>& local_saves() const { return replicas_.saves(); }

 private:
  struct Launch {
    core::Step step;
    std::uint64_t alike;
    core::Rank rank;  ///< the one that launched it first
  };
  struct Decision {
    core::Rank rank;
    messages::StepDecided decided;
  };

  void on(core::Rank rank, const messages::StepDecided& decided);
  void on(core::Rank rank, const PrepareBucket& work);
  void follow_sums(core::Rank rank, const LaunchCollective& work);
  void on(core::Rank rank, const StepShard& work);

  std::vector<std::string> violations_;
  std::map<std::uint64_t, std::vector<Launch>> launches_;  ///< of each communicator, the longest sequence
                                                           ///< seen
  std::map<std::pair<std::uint64_t, core::Rank>, std::size_t> launched_;  ///< how far each member has got in
                                                                          ///< it
  std::map<core::Step, Decision> decisions_;
  std::map<core::Rank, core::Step> committed_;
  std::map<std::tuple<core::Step, core::Rank, core::BucketIndex, std::int64_t, std::int64_t>,
           std::pair<core::Rank, std::uint64_t>>
      published_;  ///< by what is kept
  /// For gradients that are also summed: the step in which they were last reduced, and how often they were
  /// summed since then.
  struct Sums {
    core::Step step;
    int count = 0;
  };
  /// In which step each of this happened last to a bucket of a rank; -1: never.
  struct Bucket {
    core::Step ready{-1};
    core::Step prepared{-1};
    core::Step stepped{-1};
    std::optional<Sums> sums;
  };
  Bucket& at(core::Rank rank, core::BucketIndex bucket);
  std::vector<std::vector<Bucket>> buckets_;  ///< of each rank
  core::Step last_committed_{-1};
  CheckpointInvariants checkpoints_{[this](std::string sentence) { violate(std::move(sentence)); }};
  ReplicaInvariants replicas_{[this](std::string sentence) { violate(std::move(sentence)); }};
  ExpertInvariants experts_{[this](std::string sentence) { violate(std::move(sentence)); }};
  CreditInvariants credits_{[this](std::string sentence) { violate(std::move(sentence)); }};
};

}  // namespace troupe::actors
