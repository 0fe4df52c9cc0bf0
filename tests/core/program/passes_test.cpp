#include "core/program/passes.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/program/job_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"
#include "core/schedule/pipeline_schedule.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

/// A pipeline stage's list, with `units` units in each chunk.
std::vector<UnitPass> list_of(const ScheduleOptions& options, int stage, int units) {
  const auto schedule = plan_schedule(options).value();
  std::vector<UnitPass> passes;
  for (const auto& [kind, microbatch, chunk] : schedule.passes[static_cast<std::size_t>(stage)]) {
    passes.push_back({pass_of(kind), microbatch, chunk * units, (chunk + 1) * units});
  }
  return passes;
}

/// One round after another, which is what a program without a list does.
std::vector<UnitPass> plain_list(int units, int rounds) {
  std::vector<UnitPass> passes;
  for (int round = 0; round < rounds; ++round) {
    passes.push_back({Pass::forward, round, 0, units});
    passes.push_back({Pass::backward, round, 0, units});
  }
  return passes;
}

/// A launch with its points numbered.
struct Numbered {
  ProgramEntry entry;
  int round = 0;
  int slot = -1;
  std::int64_t ready = 0;
  std::int64_t needed = 0;
};

std::vector<Numbered> numbered(const Program& program) {
  const auto clock = program.clock();
  std::vector<Numbered> launches;
  for_each_launch(program, [&](const Launch& launch) {
    launches.push_back({*launch.entry, launch.round, launch.slot, clock.at(launch.entry->ready, launch.round),
                        clock.at(launch.entry->needed, launch.round)});
  });
  return launches;
}

std::vector<Numbered> of_kind(const Program& program, TensorKind kind) {
  auto launches = numbered(program);
  const auto rest = std::remove_if(launches.begin(), launches.end(),
                                   [&](const Numbered& one) { return one.entry.tensor.kind != kind; });
  launches.erase(rest, launches.end());
  return launches;
}

std::string refusal_of(const std::vector<UnitPass>& passes, int units, int rounds) {
  const auto checked = check_passes(passes, units, rounds);
  return checked ? "" : checked.error().message;
}

TEST(UnitPasses, RoundAfterRoundIsTheProgramWithoutAList) {
  for (const auto strategy : {Strategy::zero2, Strategy::zero3}) {
    auto inputs = inputs_of(SomeJob{.strategy = strategy, .rounds = 3, .numerics = Numerics::ordered});
    const auto plain = plan_program(inputs, {1}).value();
    inputs.passes = plain_list(4, 3);
    const auto listed = plan_program(inputs, {1}).value();

    for (const auto kind : {TensorKind::parameters, TensorKind::gradients, TensorKind::verdict}) {
      // The first gathers of a round need not wait until it begins, nor the last reductions end with it.
      const auto found = of_kind(listed, kind), expected = of_kind(plain, kind);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(common_text(found[i].entry), common_text(expected[i].entry));
        EXPECT_EQ(found[i].round, expected[i].round);
        EXPECT_EQ(found[i].slot, expected[i].slot);
        EXPECT_LE(found[i].ready, expected[i].ready);
        EXPECT_GE(found[i].ready + 2, expected[i].ready);
        EXPECT_GE(found[i].needed, expected[i].needed);
      }
    }
  }
}

TEST(UnitPasses, GatherInListOrderAndReduceInLaneOrder) {
  auto inputs = inputs_of(SomeJob{.units = 1, .rounds = 3});
  inputs.passes = list_of({ScheduleKind::one_f_one_b, 2, 1, 3}, 0, 1);  // F0 F1 B0 F2 B1 B2

  const Program program = plan_program(inputs, {0}).value();

  std::vector<std::tuple<TensorKind, int, std::int64_t, std::int64_t>> found;
  for (const auto& launch : numbered(program)) {
    if (launch.entry.ready.phase <= Phase::round_end)
      found.emplace_back(launch.entry.tensor.kind, launch.round, launch.ready, launch.needed);
  }
  // Points: b0 F0 b1 F1 B0 e0 b2 F2 B1 e1 B2 e2 finish.
  const auto gather = TensorKind::parameters, reduction = TensorKind::gradients;
  const std::vector<std::tuple<TensorKind, int, std::int64_t, std::int64_t>> expected{
      {gather, 0, 0, 1},  {gather, 1, 1, 3},     {gather, 0, 3, 4},
      {gather, 2, 4, 7},  {reduction, 0, 4, 8},  {gather, 1, 7, 8},
      {gather, 2, 8, 10}, {reduction, 1, 8, 10}, {reduction, 2, 10, 12},
  };
  EXPECT_EQ(found, expected);
}

TEST(UnitPasses, SayWhatDoesNotFit) {
  const auto passes = plain_list(2, 2);
  const auto changed = [&](const auto& change) {
    auto other = passes;
    change(other);
    return refusal_of(other, 2, 2);
  };

  EXPECT_EQ(refusal_of(passes, 2, 2), "");
  EXPECT_EQ(changed([](auto& list) { std::swap(list[0], list[1]); }),
            "a list of passes has backward of units 0 to 1 in round 0 where forward of unit 0 comes next");
  EXPECT_EQ(
      changed([](auto& list) { list.pop_back(); }),
      "a list of passes adds to the gradients of unit 0 in 1 of 2 rounds; every round goes through every "
      "unit");
  EXPECT_EQ(changed([](auto& list) { list.push_back(list.front()); }),
            "a list of passes has forward of units 0 to 1 in round 0 where nothing of unit 0 comes next");
  EXPECT_EQ(
      changed([](auto& list) { std::rotate(list.begin(), list.begin() + 2, list.end()); }),
      "a list of passes has backward of units 0 to 1 in round 1 before round 0 of unit 0; gradients are "
      "added in the order of rounds");
  EXPECT_EQ(
      changed([](auto& list) { list[0].end = 3; }),
      "a list of passes has forward of units 0 to 2 in round 0; passes are forward, backward or weights "
      "of some of 2 units in one of 2 rounds");
}

TEST(UnitPasses, AreFoldedAndUnfoldedToTheSame) {
  for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    const auto passes = list_of({kind, 4, 1, 64}, 1, 3);

    EXPECT_EQ(unfold(fold(passes)), passes);
    EXPECT_LE(fold(passes).size(), 5U) << name_of(kind);
  }
}

TEST(UnitPasses, ProgramsStaySmallForManyMicrobatches) {
  const auto stored = [](const ScheduleOptions& options) {
    auto inputs = inputs_of(SomeJob{.ranks = 8,
                                    .units = 5 * options.chunks,
                                    .rounds = options.microbatches,
                                    .numerics = Numerics::ordered});
    inputs.passes = list_of(options, 1, 5);
    return stored_entries(plan_program(inputs, {3}).value());
  };

  for (const auto& [kind, chunks] : {std::pair{ScheduleKind::gpipe, 1},
                                     {ScheduleKind::one_f_one_b, 1},
                                     {ScheduleKind::interleaved, 2},
                                     {ScheduleKind::zero_bubble, 1}}) {
    const auto few = stored({kind, 4, chunks, 64});
    EXPECT_EQ(stored({kind, 4, chunks, 512}), few) << name_of(kind);
    EXPECT_LT(few, 400) << name_of(kind);
  }
}

TEST(UnitPasses, TakeNoMoreMemoryThanRounds) {
  auto inputs = inputs_of(SomeJob{.ranks = 4, .rounds = 6, .numerics = Numerics::ordered});
  const auto rounds = memory_of(plan_program(inputs, {1}).value());
  inputs.passes = list_of({ScheduleKind::one_f_one_b, 4, 1, 6}, 0, 4);

  EXPECT_EQ(memory_of(plan_program(inputs, {1}).value()), rounds);
}

struct DrawnJob {
  ProgramInputs inputs;
  std::vector<UnitPass> passes;
};

DrawnJob drawn_job() {
  const auto strategy =
      *rc::gen::element(Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp);
  const bool is_twofold = strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
  ScheduleOptions options;
  options.kind = *rc::gen::element(ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                   ScheduleKind::zero_bubble);
  options.stages = *rc::gen::inRange(1, 5);
  options.chunks = options.kind == ScheduleKind::interleaved ? *rc::gen::inRange(1, 4) : 1;
  options.microbatches = options.stages * *rc::gen::inRange(1, 4);
  const int stage = *rc::gen::inRange(0, options.stages), units = *rc::gen::inRange(1, 5);
  SomeJob some{.strategy = strategy,
               .ranks = 4,
               .outer = is_twofold ? 2 : 1,
               .units = units * options.chunks,
               .rounds = options.microbatches};
  some.numerics = *rc::gen::element(Numerics::fast, Numerics::ordered);
  DrawnJob job{inputs_of(some), list_of(options, stage, units)};
  // The last round may be without a lane for some.
  const bool in_rounds = strategy == Strategy::zero2 || strategy == Strategy::zero3;
  if (in_rounds && some.rounds > 1) job.inputs.lanes -= *rc::gen::inRange(0, some.ranks);
  job.inputs.parameter_credits = *rc::gen::inRange(1, 4);
  job.inputs.gradient_credits = *rc::gen::inRange(1, 4);
  job.inputs.overlap = *rc::gen::arbitrary<bool>();
  job.inputs.separate_streams = *rc::gen::arbitrary<bool>();
  return job;
}

/// Memory of a pool is never another's before the last user of a slot has done with it.
void check_slots(const Program& program) {
  const auto clock = program.clock();
  std::map<int, Numbered> gathered, reduced;  // by slot
  for (const auto& launch : numbered(program)) {
    if (launch.slot < 0) continue;
    if (launch.entry.takes) {
      const auto before = gathered.find(launch.slot);
      if (before != gathered.end()) {
        RC_ASSERT(clock.at(before->second.entry.takes->point, before->second.round) <= launch.ready);
      }
      gathered.insert_or_assign(launch.slot, launch);
    }
    if (launch.entry.gives) {
      const auto written = clock.at(launch.entry.gives->point, launch.round);
      const auto before = reduced.find(launch.slot);
      if (before != reduced.end()) RC_ASSERT(before->second.needed <= written);
      reduced.insert_or_assign(launch.slot, launch);
    }
  }
}

RC_GTEST_PROP(UnitPasses, OfAnyScheduleEndWithEverySlotGivenBack, ()) {
  auto [inputs, passes] = drawn_job();
  inputs.passes = passes;

  const auto job = plan_all(inputs).value();

  const auto checked = check_programs(representatives(job));
  RC_ASSERT(checked.has_value());
  for (const Program& program : job.programs) check_slots(program);
  const auto file = file_of(job);
  RC_ASSERT(parse_program_file(to_text(file)).value() == file);
}

RC_GTEST_PROP(UnitPasses, BringWhatIsReadAndReduceEachLaneOnce, ()) {
  auto [inputs, passes] = drawn_job();
  inputs.passes = passes;
  const auto program = plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
  const auto clock = program.clock();
  const bool gathers = inputs.placements.parameters.back() == Placement::flat_shard;
  const bool each_round = inputs.placements.gradients.back() == Placement::flat_shard;

  std::set<std::int64_t> brought;
  std::map<int, std::vector<int>> rounds;  // of a unit's first reductions
  for (const auto& launch : numbered(program)) {
    const auto& entry = launch.entry;
    if (entry.tensor.kind == TensorKind::parameters && entry.needed.phase < Phase::round_end) {
      RC_ASSERT(launch.ready < launch.needed);
      brought.insert(launch.needed);
    }
    const bool is_first = std::all_of(entry.from.begin(), entry.from.end(),
                                      [](Placement p) { return p == Placement::partial; });
    if (entry.tensor.kind == TensorKind::gradients && is_first)
      rounds[entry.tensor.unit].push_back(launch.round);
  }
  for (const UnitPass& pass : passes) {
    for (int unit = pass.first; unit < pass.end && gathers; ++unit) {
      RC_ASSERT(brought.count(clock.at({phase_of(pass.kind), unit}, pass.round)) == 1U);
    }
  }
  for (const auto& [unit, found] : rounds) {
    RC_ASSERT(found.size() == static_cast<std::size_t>(each_round ? program.rounds : 1));
    for (std::size_t i = 0; i < found.size() && each_round; ++i) RC_ASSERT(found[i] == static_cast<int>(i));
  }
}

RC_GTEST_PROP(StepClock, NumbersThePointsOfAnyListOneByOne, ()) {
  const auto [inputs, passes] = drawn_job();
  const int units = static_cast<int>(inputs.units.size());
  const int rounds = rounds_of(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
  const StepClock clock(units, rounds, passes);

  for (std::int64_t at = 0; at < clock.points(); ++at) {
    RC_ASSERT(clock.at(clock.point(at), clock.round_of(at)) == at);
  }
}

}  // namespace
}  // namespace troupe::core
