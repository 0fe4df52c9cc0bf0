// What records say together, without processes.
#include "apps/troupe/diagnose/diagnosis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using core::Errc;
using core::Rank;
using gpu::FlightState;
using gpu::OperationKind;
using gpu::RecordedGroup;
using gpu::RecordedOperation;
using Kind = Diagnosis::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

/// A job whose ranks are looked at after ten seconds.
class Job {
 public:
  explicit Job(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      RankEvidence evidence;
      evidence.record.rank = {rank};
      evidence.record.world = {ranks};
      evidence.record.host = 1;
      evidence.record.phase = gpu::FlightPhase::in_step;
      evidence.record.phase_step = 5;
      evidence_.ranks.push_back(evidence);
    }
    evidence_.looked_wall_ns = 10 * kSecond;
    evidence_.patience = std::chrono::seconds(1);
  }

  /// What follows is about this group.
  Job& group(const std::string& name, const std::vector<int>& members) {
    group_ = name;
    members_ = members;
    for (std::size_t i = 0; i < members.size(); ++i) {
      RecordedGroup made;
      made.name = name;
      made.index = static_cast<int>(i);
      made.size = static_cast<int>(members.size());
      for (const int member : members) made.members.push_back({member});
      record(members[i]).groups.push_back(made);
    }
    return *this;
  }
  /// Ranks post the operation with this number in this second; times are those of its state.
  Job& post(const std::vector<int>& ranks, std::uint64_t number, std::int64_t second,
            FlightState state = FlightState::launched, OperationKind kind = OperationKind::all_reduce) {
    for (const int rank : ranks) {
      RecordedOperation operation;
      operation.sequence = number;
      operation.state = state;
      operation.kind = kind;
      operation.step = 5;
      operation.posted_ns = second * kSecond + rank;
      if (state != FlightState::posted) operation.launched_ns = operation.posted_ns;
      if (state == FlightState::ended || state == FlightState::failed)
        operation.ended_ns = operation.posted_ns + 2 * kSecond;
      if (state == FlightState::failed) operation.code = Errc::timeout;
      auto& found = groups_of(rank).back();
      found.operations.push_back(operation);
      operation_ = &found.operations.back();
    }
    return *this;
  }
  Job& with_peer(int peer) {
    operation_->peer = peer;
    return *this;
  }
  Job& with_elements(std::uint64_t elements) {
    operation_->elements = elements;
    return *this;
  }
  Job& process(int rank, ProcessFacts::State state) {
    evidence_.ranks[static_cast<std::size_t>(rank)].process = ProcessFacts{state, {}, {}};
    return *this;
  }
  Job& without(int rank) {
    std::erase_if(evidence_.ranks, [&](const auto& each) { return each.record.rank.value == rank; });
    return *this;
  }
  gpu::RecordedRank& record(int rank) { return evidence_.ranks[static_cast<std::size_t>(rank)].record; }

  Diagnosis diagnose() const { return apps::diagnose(evidence_); }

 private:
  std::vector<RecordedGroup>& groups_of(int rank) {
    auto& groups = record(rank).groups;
    const auto own = std::ranges::find(groups, group_, &RecordedGroup::name);
    std::rotate(own, own + 1, groups.end());
    return groups;
  }

  Evidence evidence_;
  std::string group_;
  std::vector<int> members_;
  RecordedOperation* operation_ = nullptr;
};

TEST(Diagnosis, NamesTheRankNotPostingWhatOthersAwait) {
  const auto found = Job(4)
                         .group("dp", {0, 1, 2, 3})
                         .post({0, 1, 2, 3}, 16, 1, FlightState::ended)
                         .post({0, 1, 3}, 17, 6)
                         .process(2, ProcessFacts::State::runs)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{2}));
  EXPECT_THAT(found.waiting, ElementsAre(Rank{0}, Rank{1}, Rank{3}));
  EXPECT_THAT(
      found.sentence,
      HasSubstr("rank 2 did not post all_reduce number 17 of group dp of step 5; ranks 0, 1 and 3 "
                "wait in it for 4.0 s; rank 2 is in step 5, in the trainer's own code; the last that "
                "it posted is all_reduce number 16 of group dp of step 5, which has ended; its process "
                "computes"));
}

TEST(Diagnosis, SaysNothingOfShortWaitsWhileNothingHasFailed) {
  EXPECT_EQ(Job(2).group("dp", {0, 1}).post({0}, 1, 10).diagnose().kind, Kind::nothing);
  EXPECT_EQ(Job(2).group("dp", {0, 1}).post({0, 1}, 1, 1, FlightState::ended).diagnose().kind, Kind::nothing);
}

TEST(Diagnosis, LooksThroughRanksThatWaitThemselves) {
  // Rank 3 waits for 2, which waits for 1, which waits for 0.
  const auto found = Job(4)
                         .group("c", {2, 3})
                         .post({3}, 1, 2)
                         .group("b", {1, 2})
                         .post({2}, 1, 3)
                         .group("a", {0, 1})
                         .post({1}, 1, 4)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{0}));
  EXPECT_EQ(found.subject->group, "a");
}

TEST(Diagnosis, NamesWhoPostedSomethingElse) {
  const auto found = Job(4)
                         .group("dp", {0, 1, 2, 3})
                         .post({0, 1, 3}, 17, 6)
                         .post({2}, 17, 6, FlightState::failed, OperationKind::all_gather)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::mismatch);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{2}));
  EXPECT_THAT(found.sentence, HasSubstr("rank 2 posted all_gather of 0 f32 as collective number 17 of group "
                                        "dp of step 5, but ranks 0, 1 and 3 posted all_reduce (sum)"));
}

TEST(Diagnosis, OfTwoThatDifferBlamesNeitherAlone) {
  const auto found =
      Job(2).group("dp", {0, 1}).post({0}, 3, 6).with_elements(5).post({1}, 3, 6).with_elements(6).diagnose();

  EXPECT_EQ(found.kind, Kind::mismatch);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{0}, Rank{1}));
}

TEST(Diagnosis, FindsMessagesThatDifferAndThoseThatNobodySends) {
  const auto differ = Job(2)
                          .group("pp", {0, 1})
                          .post({0}, 3, 6, FlightState::failed, OperationKind::send)
                          .with_peer(1)
                          .with_elements(5)
                          .post({1}, 3, 6, FlightState::failed, OperationKind::receive)
                          .with_peer(0)
                          .with_elements(6)
                          .diagnose();
  EXPECT_EQ(differ.kind, Kind::mismatch);
  EXPECT_THAT(differ.sentence, HasSubstr("rank 1 posted a receive of 6 f32 as message number 3 from rank 0"));

  const auto unsent = Job(2)
                          .group("pp", {0, 1})
                          .post({1}, 3, 6, FlightState::launched, OperationKind::receive)
                          .with_peer(0)
                          .diagnose();
  EXPECT_EQ(unsent.kind, Kind::hang);
  EXPECT_THAT(unsent.culprits, ElementsAre(Rank{0}));
}

TEST(Diagnosis, FindsRanksThatWaitForEachOther) {
  const auto found =
      Job(3).group("a", {0, 1, 2}).post({0}, 4, 2).group("b", {0, 1, 2}).post({1, 2}, 7, 2).diagnose();

  EXPECT_EQ(found.kind, Kind::circle);
  EXPECT_THAT(found.sentence,
              HasSubstr("wait for each other: rank 0 waits in all_reduce number 4 of group a"));
}

TEST(Diagnosis, PrefersALostProcessToASlowOne) {
  const auto found = Job(3)
                         .group("dp", {0, 1, 2})
                         .post({0}, 17, 6, FlightState::failed)
                         .process(0, ProcessFacts::State::sleeps)
                         .process(1, ProcessFacts::State::gone)
                         .process(2, ProcessFacts::State::runs)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::lost);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{1}));
}

TEST(Diagnosis, BlamesNoLostRankThatWaitedInVain) {
  const auto found = Job(3)
                         .group("dp", {0, 1, 2})
                         .post({0, 1}, 17, 6, FlightState::failed)
                         .process(0, ProcessFacts::State::gone)
                         .process(1, ProcessFacts::State::sleeps)
                         .process(2, ProcessFacts::State::runs)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{2}));
}

TEST(Diagnosis, CountsNothingThatCameAfterTheFailure) {
  // Rank 2 was stopped, and went on when the others had given up at 8 s.
  const auto found = Job(3)
                         .group("dp", {0, 1, 2})
                         .post({0, 1}, 17, 6, FlightState::failed)
                         .post({2}, 17, 9, FlightState::failed)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{2}));
}

TEST(Diagnosis, NamesAStoppedProcessAllMetInTheOperation) {
  const auto found = Job(3)
                         .group("dp", {0, 1, 2})
                         .post({0, 1, 2}, 17, 6)
                         .process(1, ProcessFacts::State::stopped)
                         .diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{1}));
  EXPECT_THAT(found.sentence, HasSubstr("rank 1 did not go on in all_reduce number 17"));
}

TEST(Diagnosis, AsksForTheRecordsOfOtherHosts) {
  const auto found = Job(3).group("dp", {0, 1, 2}).post({0, 1}, 17, 6).without(2).diagnose();

  EXPECT_EQ(found.kind, Kind::elsewhere);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{2}));
  EXPECT_THAT(found.sentence, HasSubstr("rank 2 has no record here"));
}

TEST(Diagnosis, NamesTheAbsentRankOthersAwaitInTheRuntime) {
  Job job(3);
  for (const int rank : {0, 2}) {
    job.record(rank).waits_for = "all ranks to join";
    job.record(rank).waits_since_ns = 2 * kSecond;
  }
  const auto found = job.diagnose();

  EXPECT_EQ(found.kind, Kind::hang);
  EXPECT_THAT(found.culprits, ElementsAre(Rank{1}));
  EXPECT_THAT(found.sentence, HasSubstr("ranks 0 and 2 have waited for 8.0 s: all ranks to join"));
}

}  // namespace
}  // namespace troupe::apps
