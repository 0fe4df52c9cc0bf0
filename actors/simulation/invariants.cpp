#include "actors/simulation/invariants.hpp"

#include <fmt/format.h>

#include <utility>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

using messages::Role;

void InvariantMonitor::violate(std::string sentence) {
  if (violations_.size() < 100) violations_.push_back(std::move(sentence));
}

void InvariantMonitor::on_message(core::Rank rank, const messages::Envelope& envelope) {
  checkpoints_.on_message(envelope);
  replicas_.on_message(envelope);
  credits_.on_message(rank, envelope);
  dispatch(
      envelope.body,
      Overloaded{
          [&](const messages::StepDecided& decided) {
            if (envelope.to.role == Role::trainer) on(rank, decided);
          },
          [&](const messages::BucketReady& ready) {
            auto& last = at(rank, ready.bucket).ready;
            if (last >= ready.step) {
              violate(fmt::format("GB-1: bucket {} of rank {} is ready in step {}, as it was in step {}",
                                  ready.bucket.value, rank.value, ready.step.value, last.value));
            }
            last = ready.step;
          },
          [&](const messages::ShardStepped& stepped) { at(rank, stepped.bucket).stepped = stepped.step; },
          [&](const messages::StepCommitted& committed) {
            auto [last, first] = committed_.try_emplace(rank, core::Step{committed.step.value - 1});
            if (last->second.value + 1 != committed.step.value) {
              violate(fmt::format("RS-4: rank {} committed step {} after step {}", rank.value,
                                  committed.step.value, last->second.value));
            }
            last->second = committed.step;
            if (committed.commit) last_committed_ = std::max(last_committed_, committed.step);
          },
      });
}

void InvariantMonitor::on(core::Rank rank, const messages::StepDecided& decided) {
  auto [found, first] = decisions_.try_emplace(decided.step, Decision{rank, decided});
  if (first) return;
  // The reason names what only the refusing rank knows; everything that ranks act on must be equal.
  auto theirs = decided;
  theirs.reason = found->second.decided.reason;
  if (theirs == found->second.decided) return;
  violate(fmt::format("RS-1: rank {} and rank {} decide step {} differently", found->second.rank.value,
                      rank.value, decided.step.value));
}

void InvariantMonitor::on_work(const messages::Address& who, const Work& work) {
  checkpoints_.on_work(who, work);
  replicas_.on_work(who, work);
  credits_.on_work(who, work);
  const auto rank = who.rank;
  if (const auto* prepare = work_if<PrepareBucket>(work)) on(rank, *prepare);
  if (const auto* shard = work_if<StepShard>(work)) on(rank, *shard);
  const auto* launch = work_if<LaunchCollective>(work);
  if (!launch) return;
  follow_sums(rank, *launch);
  std::size_t& place = launched_[{launch->communicator, rank}];
  auto& launches = launches_[launch->communicator];
  if (place == launches.size()) launches.push_back({launch->step, launch->alike, rank});
  const auto& expected = launches[place];
  if (expected.step != launch->step || expected.alike != launch->alike) {
    violate(
        fmt::format("CO-1: launch {} of rank {} on a communicator is its entry {} of step {}, that of rank "
                    "{} was another "
                    "one, of step {}",
                    place, rank.value, launch->entry.value, launch->step.value, expected.rank.value,
                    expected.step.value));
  }
  place += 1;
}

InvariantMonitor::Bucket& InvariantMonitor::at(core::Rank rank, core::BucketIndex bucket) {
  const auto place = static_cast<std::size_t>(rank.value);
  if (buckets_.size() <= place) buckets_.resize(place + 1);
  auto& own = buckets_[place];
  if (own.size() <= bucket.value) own.resize(bucket.value + 1);
  return own[bucket.value];
}

void InvariantMonitor::on(core::Rank rank, const PrepareBucket& work) {
  auto& bucket = at(rank, work.bucket);
  const auto before = std::exchange(bucket.prepared, work.step);
  if (before.value < 0 || before == work.step || bucket.stepped == before) return;
  violate(fmt::format("GB-3: rank {} prepares bucket {} for step {} before its update of step {}", rank.value,
                      work.bucket.value, work.step.value, before.value));
}

void InvariantMonitor::follow_sums(core::Rank rank, const LaunchCollective& work) {
  if (work.final_sum == FinalSum::none) return;
  auto& known = at(rank, work.bucket).sums;
  if (work.final_sum == FinalSum::awaits) {
    known = {work.step};
    return;
  }
  if (!known) known = {core::Step{-1}};
  auto& sums = *known;
  sums.count += 1;
  if (sums.step == work.step && sums.count == 1) return;
  violate(fmt::format("FG-1: rank {} sums the gradients of bucket {} over their group {} in step {}",
                      rank.value, work.bucket.value,
                      sums.step == work.step ? "again" : "before their last reduction", work.step.value));
}

void InvariantMonitor::on(core::Rank rank, const StepShard& work) {
  const auto& sums = at(rank, work.bucket).sums;
  if (!sums || (sums->step == work.step && sums->count == 1)) return;
  violate(
      fmt::format("FG-1: rank {} steps bucket {} in step {}, whose gradients were not summed over their "
                  "group once",
                  rank.value, work.bucket.value, work.step.value));
}

void InvariantMonitor::on_published(core::Rank rank, core::Step step, core::BucketIndex bucket,
                                    RankWorld::PublishedBits bits) {
  auto [found, first] = published_.try_emplace({step, bits.first, bucket, bits.range.start, bits.range.end},
                                               std::pair{rank, bits.hash});
  if (first || found->second.second == bits.hash) return;
  violate(fmt::format("PS-3: after step {} bucket {} has other bits on rank {} than on rank {}", step.value,
                      bucket.value, rank.value, found->second.first.value));
}

}  // namespace troupe::actors
