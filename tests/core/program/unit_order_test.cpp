#include "core/program/unit_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/program/job_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"
#include "core/program/overlap.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"
#include "core/program/step_time.hpp"
#include "core/random.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using Lines = std::vector<std::string>;
using testing::HasSubstr;

constexpr std::uint64_t kSeeds = 40;

std::vector<int> shuffled(int units, std::uint64_t seed, std::string_view name) {
  const CounterRandom random(seed, name);
  std::vector<int> order(static_cast<std::size_t>(units));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(static_cast<std::uint32_t>(i), i)]);
  }
  return order;
}

/// Every other one has a backward of its own.
UnitOrder drawn(int units, std::uint64_t seed) {
  UnitOrder order{shuffled(units, seed, "forward"), {}};
  if (seed % 2 == 1) order.backward = shuffled(units, seed, "backward");
  return order;
}

ProgramInputs inputs_in(const SomeJob& job, const UnitOrder& order) {
  auto inputs = inputs_of(job);
  inputs.order = order;
  inputs.separate_streams = false;
  return inputs;
}

Program plan_in(const SomeJob& job, const UnitOrder& order) {
  const auto inputs = inputs_in(job, order);
  return plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
}

Lines launches(const Program& program) {
  Lines found;
  for_each_launch(program, [&](const Launch& launch) {
    found.push_back(describe(*launch.entry) + " after " + describe(launch.entry->ready) + " in slot " +
                    std::to_string(launch.slot));
  });
  return found;
}

std::string refused(const UnitOrder& order, int units) {
  const auto done = normalised(order, units);
  EXPECT_FALSE(done);
  return done ? "" : done.error().message;
}

TEST(UnitOrder, IsWrittenBothWaysUnlessUsual) {
  EXPECT_EQ(normalised({{2, 0, 1}, {}}, 3).value(), (UnitOrder{{2, 0, 1}, {1, 0, 2}}));
  EXPECT_EQ(normalised({{}, {0, 1, 2}}, 3).value(), (UnitOrder{{0, 1, 2}, {0, 1, 2}}));
  EXPECT_EQ(normalised({{2, 0, 1}, {0, 1, 2}}, 3).value(), (UnitOrder{{2, 0, 1}, {0, 1, 2}}));
  EXPECT_EQ(normalised({{0, 1, 2}, {2, 1, 0}}, 3).value(), UnitOrder{});
  EXPECT_EQ(normalised({{0, 1, 2}, {}}, 3).value(), UnitOrder{});
  EXPECT_EQ(normalised({}, 0).value(), UnitOrder{});
}

TEST(UnitOrder, NamesTheUnitThatIsMissingTwiceOrUnknown) {
  EXPECT_EQ(refused({{0, 2}, {}}, 3), "the forward order lacks unit 1; it has each of 3 units once");
  EXPECT_EQ(refused({{0, 2, 0}, {}}, 3),
            "the forward order has unit 0 twice, at places 0 and 2; it has each of 3 units once");
  EXPECT_EQ(refused({{0, 3, 1}, {}}, 3),
            "the forward order has unit 3 at place 1, but there are 3 units, numbered from 0");
  EXPECT_EQ(refused({{}, {1, -1}}, 2),
            "the backward order has unit -1 at place 1, but there are 2 units, numbered from 0");
  EXPECT_EQ(refused({{1, 0}, {0}}, 2), "the backward order lacks unit 1; it has each of 2 units once");
  EXPECT_EQ(refused({{0}, {}}, 0),
            "the forward order has unit 0 at place 0, but there are 0 units, numbered from 0");
}

TEST(OrderRecorder, WritesBothDirectionsAndUnusedUnitsBehind) {
  OrderRecorder recorder(4);
  for (const int unit : {2, 0, 3}) ASSERT_TRUE(recorder.uses(unit));
  const auto again = recorder.uses(0);
  recorder.begin_backward();
  for (const int unit : {0, 1}) ASSERT_TRUE(recorder.uses(unit)) << "in backward for the first time";

  EXPECT_EQ(recorder.order(), (UnitOrder{{2, 0, 3, 1}, {0, 1, 3, 2}}));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, testing::HasSubstr("unit 0 is used again in forward"));
  EXPECT_THAT(recorder.uses(1).error().message, testing::HasSubstr("unit 1 is used again in backward"));
  EXPECT_EQ(OrderRecorder(3).order(), (UnitOrder{{0, 1, 2}, {2, 1, 0}})) << "nothing was used";
}

TEST(StepClock, GoesThroughUnitsInTheirOrder) {
  const StepClock clock(3, 2, UnitOrder{{2, 0, 1}, {0, 2, 1}});

  Lines points;
  for (std::int64_t at = 0; at < clock.points(); ++at) {
    const auto point = clock.point(at);
    points.push_back(describe(point));
    EXPECT_EQ(clock.at(point, clock.round_of(at)), at) << describe(point);
  }

  const Lines round{"round_begin",        "forward of unit 2",  "forward of unit 0",  "forward of unit 1",
                    "backward of unit 0", "backward of unit 2", "backward of unit 1", "round_end"};
  Lines expected(round);
  expected.insert(expected.end(), round.begin(), round.end());
  for (const char* point :
       {"finish", "commit", "update of unit 2", "update of unit 0", "update of unit 1", "step_end",
        "next_forward of unit 2", "next_forward of unit 0", "next_forward of unit 1"}) {
    expected.push_back(point);
  }
  EXPECT_EQ(points, expected);
}

// Covers unit-11.
TEST(PlannedOrder, OfFullShardingGathersAheadAndReducesInIt) {
  EXPECT_EQ(launches(plan_in({.units = 3}, {{2, 0, 1}, {}})),
            (Lines{"all_gather of parameters 2.0 after round_begin in slot 0",
                   "all_gather of parameters 0.0 after round_begin in slot 1",
                   "all_gather of parameters 1.0 after forward of unit 2 in slot 0",
                   "all_gather of parameters 1.0 after forward of unit 1 in slot 0",
                   "all_gather of parameters 0.0 after forward of unit 1 in slot 1",
                   "all_gather of parameters 2.0 after backward of unit 1 in slot 0",
                   "reduce_scatter of gradients 1.0 after backward of unit 1 in slot 0",
                   "reduce_scatter of gradients 0.0 after backward of unit 0 in slot 1",
                   "reduce_scatter of gradients 2.0 after backward of unit 2 in slot 0",
                   "all_reduce of verdict after finish in slot -1"}));
}

TEST(PlannedOrder, OfBackwardNeedNotBeTheOppositeOfForward) {
  EXPECT_EQ(launches(plan_in({.units = 3}, {{}, {1, 2, 0}})),
            (Lines{"all_gather of parameters 0.0 after round_begin in slot 0",
                   "all_gather of parameters 1.0 after round_begin in slot 1",
                   "all_gather of parameters 2.0 after forward of unit 0 in slot 0",
                   "all_gather of parameters 1.0 after forward of unit 2 in slot 0",
                   "all_gather of parameters 2.0 after forward of unit 2 in slot 1",
                   "all_gather of parameters 0.0 after backward of unit 1 in slot 0",
                   "reduce_scatter of gradients 1.0 after backward of unit 1 in slot 0",
                   "reduce_scatter of gradients 2.0 after backward of unit 2 in slot 1",
                   "reduce_scatter of gradients 0.0 after backward of unit 0 in slot 0",
                   "all_reduce of verdict after finish in slot -1"}));
}

TEST(PlannedOrder, IsThatOfUpdatesAndTheirGathers) {
  const auto found = launches(plan_in({.strategy = Strategy::zero2, .units = 3}, {{2, 0, 1}, {}}));

  EXPECT_EQ(Lines(found.end() - 3, found.end()),
            (Lines{"all_gather of parameters 2.0 after update of unit 2 in slot -1",
                   "all_gather of parameters 0.0 after update of unit 0 in slot -1",
                   "all_gather of parameters 1.0 after update of unit 1 in slot -1"}));
}

TEST(PlannedOrder, ThatIsTheUsualOneChangesNothing) {
  const SomeJob job{.units = 4, .rounds = 2};

  EXPECT_EQ(plan_in(job, {{0, 1, 2, 3}, {}}), plan_in(job, {}));
  EXPECT_EQ(plan_in(job, {{}, {3, 2, 1, 0}}), plan_in(job, {}));
}

/// Units of one size are alike but for their numbers.
TEST(PlannedOrder, HidesAsMuchForTheSameMemoryAndTime) {
  const SomeJob four{.units = 4, .rounds = 2};
  const OverlapCounts counts{.gathers = 16, .reductions = 8, .hidden_gathers = 12, .hidden_reductions = 6};
  EXPECT_EQ(overlap_of(plan_in(four, {{3, 1, 0, 2}, {}})), counts) << "as measured for the usual order";
  for (const auto strategy : {Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto numerics : {Numerics::fast, Numerics::ordered}) {
      const SomeJob job{
          .strategy = strategy, .ranks = 4, .outer = 2, .units = 7, .rounds = 3, .numerics = numerics};
      const auto usual = plan_in(job, {});
      const Links links{.inner = {1e9, 1e-6}, .outer = {1e8, 1e-5}, .node_ranks = 2};
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        auto order = drawn(job.units, seed);
        const auto program = plan_in(job, order);
        EXPECT_EQ(memory_of(program), memory_of(usual));
        EXPECT_EQ(traffic_of(program), traffic_of(usual));
        // Where backward begins with what forward ends with. Otherwise a first gather may find other slots.
        if (!order.backward.empty()) continue;
        EXPECT_EQ(overlap_of(program), overlap_of(usual)) << name_of(strategy) << ", seed " << seed;
        EXPECT_NEAR(step_time(program, links, 1).step_seconds, step_time(usual, links, 1).step_seconds,
                    1e-12);
      }
    }
  }
}

TEST(PlannedOrder, OfAnyKindPassesTheCheckOfAllRanks) {
  for (const auto strategy : {Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      auto inputs = inputs_in({.strategy = strategy,
                               .ranks = 6,
                               .outer = strategy == Strategy::hsdp || strategy == Strategy::hfsdp ? 3 : 1,
                               .units = 6,
                               .rounds = 2,
                               .numerics = Numerics::ordered,
                               .elements = 1152},
                              drawn(6, seed));
      inputs.units[seed % 6].residency = Residency::resident;
      inputs.units[seed * 7 % 6].tensors.push_back({.elements = 96});
      inputs.parameter_credits = 1 + static_cast<int>(seed % 4);
      inputs.gradient_credits = 1 + static_cast<int>(seed % 3);
      inputs.overlap = seed % 5 != 0;
      inputs.separate_streams = seed % 2 == 0;
      const auto job = plan_all(inputs).value();

      const auto checked = check_programs(representatives(job));

      ASSERT_TRUE(checked) << checked.error().message << ", seed " << seed;
    }
  }
}

TEST(PlannedOrder, DifferingOnOneRankIsNamedByEntry) {
  const SomeJob job{.units = 3};
  const auto ours = plan_program(inputs_in(job, {{2, 0, 1}, {}}), {0}).value();
  const auto theirs = plan_program(inputs_in(job, {{2, 1, 0}, {}}), {1}).value();
  const Mesh mesh = Mesh::create({.dp = 2}).value();

  const auto checked = check_programs(checked_job(mesh, {&ours, &theirs}));

  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Errc::mismatch);
  EXPECT_THAT(checked.error().message,
              HasSubstr("rank 0's entry 1, all_gather of parameters 0.0 on dp_cp on stream 0 meets rank 1's "
                        "entry 1, all_gather of parameters 1.0 on dp_cp on stream 0; they differ in tensor"));
  const Communicator group{GroupKind::dp_cp, 0};
  EXPECT_NE(hash(ours, group), hash(theirs, group)) << "ranks that join are told apart by it";
}

/// The order of backward alone, and that of forward where only publications follow it.
TEST(PlannedOrder, IsPartOfTheHash) {
  const auto hash_of = [](Strategy strategy, const UnitOrder& order) {
    return hash(plan_in({.strategy = strategy, .units = 3}, order), {GroupKind::dp_cp, 0});
  };

  EXPECT_NE(hash_of(Strategy::zero3, {{}, {1, 2, 0}}), hash_of(Strategy::zero3, {}));
  EXPECT_NE(hash_of(Strategy::zero2, {{1, 0, 2}, {2, 1, 0}}), hash_of(Strategy::zero2, {}));
  EXPECT_NE(hash_of(Strategy::zero2, {{0, 1, 2}, {1, 2, 0}}), hash_of(Strategy::zero2, {}));
}

TEST(PlannedOrder, IsKeptByFilesAndLooksAsBeforeWithout) {
  const auto file = file_of(plan_all(inputs_in({.units = 3, .rounds = 2}, {{2, 0, 1}, {}})).value());
  const auto text = to_text(file);

  EXPECT_EQ(parse_program_file(text).value(), file);
  EXPECT_THAT(to_text(file_of(plan_all(inputs_in({.units = 3}, {})).value())),
              testing::Not(HasSubstr("\"order\"")));
  const auto spoilt = [&](const std::function<void(nlohmann::ordered_json&)>& spoil) {
    auto json = nlohmann::ordered_json::parse(text);
    spoil(json["programs"][0]["program"]["order"]);
    const auto read = parse_program_file(json.dump());
    return read ? "it was read" : read.error().message;
  };
  EXPECT_THAT(spoilt([](auto& order) {
                order["forward"] = {2, 0, 2};
              }),
              HasSubstr("the forward order has unit 2 twice, at places 0 and 2"));
  EXPECT_THAT(spoilt([](auto& order) {
                order["backward"] = {2, 0, 3};
              }),
              HasSubstr("the backward order has unit 3 at place 2, but there are 3 units"));
  EXPECT_THAT(spoilt([](auto& order) { order["backward"] = nlohmann::ordered_json::array(); }),
              HasSubstr("an order of units lacks its list of forward or of backward"));
}

TEST(PlannedOrder, IsRefusedBesideAListOfPasses) {
  auto inputs = inputs_in({.units = 2}, {{1, 0}, {}});
  inputs.passes = {{Pass::forward, 0, 0, 2}, {Pass::backward, 0, 0, 2}};

  EXPECT_THAT(plan_program(inputs, {0}).error().message,
              HasSubstr("units of a list of passes come in the order of their numbers"));
}

}  // namespace
}  // namespace troupe::core
