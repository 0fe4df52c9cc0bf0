// What a session makes of collectives that its trainer declared (SessionOptions::operations).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/simulation/operation_job.hpp"

namespace troupe::actors::operations {
namespace {

using testing::HasSubstr;

class DeclaredOperations : public testing::TestWithParam<Strategy> {
 protected:
  bool has_units() const { return GetParam() != Strategy::ddp && GetParam() != Strategy::zero1; }
  /// Where a post is, as far as the session knows.
  std::string in(const std::string& place) const { return has_units() ? ", in " + place : ""; }

  std::string refused(std::function<Result<void>(TrainerGroup&, const Place&)> post) const {
    return refusal({.strategy = GetParam(), .post = std::move(post)});
  }
};

TEST_P(DeclaredOperations, ChangeNothingOfAJobThatPostsThem) {
  for (const int ranks : {2, 4}) {
    for (const bool full : {false, true}) {
      const auto with = run({.strategy = GetParam()}, ranks, full);
      const auto without = run({.strategy = GetParam(), .operations = {}}, ranks, full);

      ASSERT_EQ(problems_of(with.report) + problems_of(without.report), "");
      EXPECT_EQ(with.ranks, without.ranks);
      EXPECT_NE(with.ranks[0], Values(kUnits * 16, 0)) << "steps change them";
    }
  }
}

TEST_P(DeclaredOperations, PostedDifferentlyAreRefusedNamingBoth) {
  const auto instead = [&](std::function<Result<void>(TrainerGroup&)> other) {
    return refused([other](TrainerGroup& tp, const Place& place) {
      return place.is(Pass::forward, 2) ? other(tp) : post_usual(tp, place);
    });
  };
  const auto expected = [&](const std::string& posted) {
    return posted + in("forward of unit 2") +
           " on tp was posted in lane 0 where SessionOptions::operations declares operation 3 of 5, "
           "all_reduce "
           "of f32, 2x4 elements" +
           in("forward of unit 2") + "; post what is declared, or declare what is posted";
  };

  EXPECT_EQ(instead([](TrainerGroup& tp) { return sum(tp, 5); }), expected("all_reduce of f32, 5 elements"));
  EXPECT_EQ(instead([](TrainerGroup& tp) { return sum(tp, 3); }), expected("all_reduce of f32, 3 elements"));
  EXPECT_EQ(instead([](TrainerGroup& tp) { return gather_counts(tp); }),
            expected("all_gather of i64, 1,1 elements"));
  EXPECT_EQ(instead([](TrainerGroup& tp) { return exchange(tp, 2); }),
            expected("all_to_all of u8, 4 elements"));
  EXPECT_EQ(instead([](TrainerGroup& tp) -> Result<void> {
              std::vector<double> values(4);
              return tp.wait(TRY(tp.all_reduce(gpu::view_of(std::span(values)), DType::f64)));
            }),
            expected("all_reduce of f64, 4 elements"));
  EXPECT_EQ(instead([](TrainerGroup& tp) -> Result<void> {
              std::vector<float> values(4);
              TRY(tp.send(gpu::view_of(std::span(values)), DType::f32, 1 - tp.index()));
              return {};
            }),
            expected("send of f32, 4 elements"));
}

TEST_P(DeclaredOperations, MissingOrSuperfluousAreRefusedByName) {
  EXPECT_EQ(
      refused([](TrainerGroup& tp, const Place& place) {
        return place.is(Pass::forward, 0) && place.lane == 1 ? Result<void>{} : post_usual(tp, place);
      }),
      has_units()
          ? "all_reduce of f32, 4 elements, in forward of unit 1 on tp was posted in lane 1 where "
            "SessionOptions::operations declares operation 0 of 5, all_reduce of f32, 2x4 elements, in "
            "forward of unit 0; post what is declared, or declare what is posted"
          : "all_gather of i64, 1,1 elements on tp was posted in lane 1 where "
            "SessionOptions::operations declares operation 1 of 5, all_reduce of f32, 2x4 elements; post "
            "what is declared, or declare what is posted")
      << "without units an equal one of the next unit stands for it";
  EXPECT_EQ(refused([](TrainerGroup& tp, const Place& place) {
              return place.is(Pass::backward, 1) ? Result<void>{} : post_usual(tp, place);
            }),
            "end_lane() was called in lane 0 after 4 of the 5 operations that SessionOptions::operations "
            "declares on tp; post the next, all_to_all of u8, at most 2x6 elements" +
                in("backward of unit 1") + ", or do not declare it");
  EXPECT_EQ(
      refused([](TrainerGroup& tp, const Place& place) -> Result<void> {
        TRY(post_usual(tp, place));
        return place.is(Pass::backward, 0) ? sum(tp) : Result<void>{};
      }),
      "all_reduce of f32, 4 elements" + in("backward of unit 0") +
          " on tp was posted in lane 0 after all 5 operations that SessionOptions::operations declares on "
          "it; declare it, or leave it out");
}

TEST_P(DeclaredOperations, WithBoundedCountsMayMoveAnythingUpToThem) {
  const auto exchanged = [&](std::size_t to_each) {
    return refused([to_each](TrainerGroup& tp, const Place& place) {
      return place.is(Pass::backward, 1) ? exchange(tp, to_each) : post_usual(tp, place);
    });
  };

  EXPECT_EQ(exchanged(0), "it came to its end");
  EXPECT_EQ(exchanged(3), "it came to its end");
  EXPECT_EQ(exchanged(4),
            "all_to_all of u8, 8 elements" + in("backward of unit 1") +
                " on tp was posted in lane 0 where SessionOptions::operations declares operation "
                "4 of 5, all_to_all of u8, at most 2x6 elements" +
                in("backward of unit 1") + "; post what is declared, or declare what is posted");
}

TEST_P(DeclaredOperations, OfARootThatIsNoMemberIsRefused) {
  for (const int root : {-1, 2}) {
    const auto broadcast = [root](TrainerGroup& tp, const Place& place) -> Result<void> {
      if (!place.is(Pass::forward, 0)) return {};
      std::vector<float> values(4);
      return tp.wait(TRY(tp.broadcast(gpu::view_of(std::span(values)), DType::f32, root)));
    };

    EXPECT_THAT(
        refusal({.strategy = GetParam(),
                 .operations = {{"tp", Kind::broadcast, DType::f32, {4, 4}, false, Pass::forward, {{0}}}},
                 .post = broadcast}),
        HasSubstr("declares operation 0 of 1, broadcast of f32, 2x4 elements"));
  }
}

TEST_P(DeclaredOperations, RefusedSendNothingAndMayBePostedCorrectly) {
  const auto outcome = run({.strategy = GetParam(), .post = [](TrainerGroup& tp, const Place& place) {
                              const auto sent = tp.sent();
                              const auto wrong = sum(tp, 7);
                              EXPECT_FALSE(wrong);
                              EXPECT_EQ(tp.sent(), sent);
                              return post_usual(tp, place);
                            }});

  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST_P(DeclaredOperations, LaneEndsOnceTheRestIsPosted) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> Result<bool> {
    const Job job{.strategy = GetParam(),
                  .operations = {{"tp", Kind::all_reduce, DType::f32, {4, 4}, false, Pass::backward, {{0}}}},
                  .post = [](TrainerGroup&, const Place&) { return Result<void>{}; },
                  .lanes = 1};
    auto session = TRY(Session::join(rank, options_of(job), parameters()));
    auto& tp = *TRY(session->group("tp"));
    TRY(session->begin_step(0.1));
    TRY(session->begin_lane({0}));
    TRY(pass_through(*session, tp, job, {Pass::forward}));
    TRY(session->begin_backward());
    TRY(pass_through(*session, tp, job, {Pass::backward}));
    EXPECT_FALSE(session->end_lane(0));
    TRY(sum(tp));
    TRY(session->end_lane(0));
    const bool committed = TRY(session->finish_step()).committed;
    TRY(session->leave());
    return committed;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

INSTANTIATE_TEST_SUITE_P(Strategies, DeclaredOperations,
                         testing::Values(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3),
                         testing::PrintToStringParamName());

TEST(DeclaredOperationsOfUnits, AreRefusedInAnotherUnitOrInNone) {
  const auto first_wrong = [](const std::function<Result<void>(Session&)>& before) {
    SimulationOptions simulation;
    simulation.ranks = {2};
    const auto outcome = simulate_job<bool>(simulation, [&](SimulatedRank& rank) -> Result<bool> {
      auto session = TRY(Session::join(rank, options_of({}), parameters()));
      TRY(session->begin_step(0.1));
      TRY(session->begin_lane({0}));
      TRY(before(*session));
      TRY(sum(*TRY(session->group("tp"))));
      return true;
    });
    return outcome.report.results[0] ? "" : outcome.report.results[0].error().message;
  };

  EXPECT_THAT(
      first_wrong([](Session& session) { return session.acquire({1}); }),
      HasSubstr("all_reduce of f32, 4 elements, in forward of unit 1 on tp was posted in lane 0 where "
                "SessionOptions::operations declares operation 0 of 5, all_reduce of f32, 2x4 elements, "
                "in forward of unit 0"));
  EXPECT_THAT(first_wrong([](Session&) { return Result<void>{}; }),
              HasSubstr("all_reduce of f32, 4 elements, in no unit on tp was posted"));
  EXPECT_THAT(first_wrong([](Session& session) -> Result<void> {
                TRY(session.begin_backward());
                return session.acquire({2});
              }),
              HasSubstr("all_reduce of f32, 4 elements, in backward of unit 2 on tp was posted"));
}

TEST(DeclaredOperationsOfUnits, FollowTheirDeclaredOrder) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero3}) {
    const core::DeclaredOrder order{{{2}, {0}, {1}}, {}};
    // An equal one of each unit would hide the order where units are not known.
    auto operations = usual();
    operations[0].counts = {5, 5};
    const auto post = [](TrainerGroup& tp, const Place& place) {
      return place.is(Pass::forward, 0) ? sum(tp, 5) : post_usual(tp, place);
    };

    EXPECT_EQ(refusal({.strategy = strategy, .operations = operations, .post = post, .order = order}),
              "it came to its end");
    EXPECT_EQ(refusal({.strategy = strategy, .operations = operations, .post = post}), "it came to its end");
    EXPECT_THAT(refusal({.strategy = strategy,
                         .operations = operations,
                         .post =
                             [post](TrainerGroup& tp, Place place) {
                               place.unit = (place.unit + 1) % kUnits;
                               return post(tp, place);
                             }}),
                HasSubstr("declares operation"));
  }
}

TEST(DeclaredOperationsOfUnits, ComeOnceInEachMicrobatch) {
  const auto twice = [](const std::function<Result<void>(TrainerGroup&, const Place&)>& post) {
    return refusal({.strategy = Strategy::zero1, .post = post, .microbatches = 2});
  };

  EXPECT_EQ(twice(post_usual), "it came to its end");
  EXPECT_THAT(twice([](TrainerGroup& tp, const Place& place) {
                const bool left_out = place.is(Pass::backward, 1) && place.microbatch == 0;
                return left_out ? Result<void>{} : post_usual(tp, place);
              }),
              HasSubstr("begin_microbatch() was called in lane 0 after 4 of the 5 operations"));
}

TEST(DeclaredOperationsOfUnits, CountOnlyWithinLanesAndOnTheirGroups) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> Result<bool> {
    auto options = options_of({});
    options.groups = {{"others", {{{0}, {1}}}}};
    auto session = TRY(Session::join(rank, options, parameters()));
    auto& tp = *TRY(session->group("tp"));
    auto& others = *TRY(session->group("others"));
    const Job job{.post = [&](TrainerGroup& group, const Place& place) -> Result<void> {
      TRY(sum(others, 9));
      return post_usual(group, place);
    }};
    TRY(sum(tp, 9));
    TRY(session->begin_learning());
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) TRY(session->acquire({unit}));
    TRY(sum(tp, 9));
    TRY(session->begin_backward());
    for (std::uint32_t unit = kUnits; unit-- > 0;) TRY(session->acquire({unit}));
    TRY(session->end_learning());
    TRY(step(*session, job));
    TRY(sum(tp, 9));
    TRY(session->begin_evaluation());
    TRY(session->acquire({0}));
    TRY(sum(tp, 9));
    TRY(session->end_evaluation());
    TRY(step(*session, job));
    TRY(session->leave());
    return true;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST(DeclaredOperationsOfUnits, FollowALearnedOrder) {
  SimulationOptions simulation;
  simulation.ranks = {2};
  const auto outcome = simulate_job<bool>(simulation, [](SimulatedRank& rank) -> Result<bool> {
    const Job job{.order = {{{1}, {2}, {0}}, {}}};
    auto options = options_of(job);
    options.order = {};
    auto session = TRY(Session::join(rank, options, parameters()));
    TRY(session->begin_learning());
    for (const std::uint32_t unit : {1U, 2U, 0U}) TRY(session->acquire({unit}));
    TRY(session->begin_backward());
    for (const std::uint32_t unit : {0U, 2U, 1U}) TRY(session->acquire({unit}));
    TRY(session->end_learning());
    TRY(step(*session, job));
    TRY(session->leave());
    return true;
  });

  EXPECT_EQ(problems_of(outcome.report), "");
}

TEST(DeclaredOperationsOfUnits, MayPutInOtherCountsOnEachMember) {
  const std::vector<DeclaredOperation> operations{
      {"tp", Kind::all_gather, DType::f32, {1, 3}, false, Pass::forward, {{0}}},
      {"tp", Kind::reduce_scatter, DType::f32, {4, 4}, false, Pass::forward, {{1}}},
      {"tp", Kind::broadcast, DType::f32, {2, 5}, false, Pass::backward, {{2}}}};
  const auto posted = [&](TrainerGroup::Counts gathered, TrainerGroup::Counts scattered, int root) {
    return refusal(
        {.operations = operations, .post = [=](TrainerGroup& tp, const Place& place) -> Result<void> {
           const auto own = static_cast<std::size_t>(tp.index());
           if (place.is(Pass::forward, 0)) {
             std::vector<float> in(gathered[own]), all(gathered[0] + gathered[1]);
             return tp.wait(TRY(tp.all_gather(gpu::view_of(std::span(in)), gpu::view_of(std::span(all)),
                                              DType::f32, gathered)));
           }
           if (place.is(Pass::forward, 1)) {
             std::vector<float> in(scattered[0] + scattered[1]), part(scattered[own]);
             return tp.wait(TRY(tp.reduce_scatter(gpu::view_of(std::span(in)), gpu::view_of(std::span(part)),
                                                  DType::f32, scattered)));
           }
           if (!place.is(Pass::backward, 2)) return {};
           std::vector<float> values(2);
           return tp.wait(TRY(tp.broadcast(gpu::view_of(std::span(values)), DType::f32, root)));
         }});
  };

  EXPECT_EQ(posted({1, 3}, {4, 0}, 0), "it came to its end");
  EXPECT_EQ(posted({1, 3}, {1, 3}, 0), "it came to its end");
  EXPECT_THAT(
      posted({3, 1}, {4, 0}, 0),
      HasSubstr("all_gather of f32, 3,1 elements, in forward of unit 0 on tp was posted in lane 0 where "
                "SessionOptions::operations declares operation 0 of 3, all_gather of f32, 1x1,1x3"));
  EXPECT_THAT(posted({1, 3}, {2, 3}, 0),
              HasSubstr("reduce_scatter of f32, 5 elements, in forward of unit 1"));
  EXPECT_THAT(posted({1, 3}, {4, 0}, 1), HasSubstr("broadcast of f32, 2 elements, in backward of unit 2"));
}

}  // namespace
}  // namespace troupe::actors::operations
