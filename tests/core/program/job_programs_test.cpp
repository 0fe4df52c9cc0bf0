#include "core/program/job_programs.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/errors.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_operations.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

TEST(JobPrograms, AHundredThousandRanksHaveFewProgramsThatPass) {
  for (const int rounds : {8, 3}) {
    const auto inputs = inputs_of(SomeJob{.strategy = Strategy::hsdp,
                                          .ranks = 100'000,
                                          .outer = 3'125,
                                          .units = 40,
                                          .rounds = rounds,
                                          .numerics = Numerics::ordered,
                                          .elements = 32 * 1024});

    const auto job = plan_all(inputs).value();

    EXPECT_EQ(job.of_place.size(), 100'000U);
    EXPECT_LE(job.programs.size(), rounds == 8 ? 2U : 3U);
    const auto checked = check_programs(representatives(job));
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
  }
}

/// Eight ranks, of which neighbours share experts.
JobPrograms pairs() {
  auto inputs = inputs_of(SomeJob{.strategy = Strategy::zero1, .ranks = 8, .elements = 1024});
  inputs.operations = {counts_of_experts(1), rows_of_experts(Phase::forward, 1)};
  return plan_all(inputs).value();
}

TEST(JobPrograms, APairStandsForAllThatPostTheSame) {
  const auto job = pairs();
  const auto checked = representatives(job);

  EXPECT_EQ(checked.ranks.size(), 1U);
  EXPECT_TRUE(check_programs(checked));
}

TEST(JobPrograms, DifferentlyPostingRankIsComparedWithItsPeer) {
  auto job = pairs();
  auto other = job.programs[0];
  other.operations = fold({counts_of_experts(1)});
  job.programs.push_back(other);
  job.of_place[5] = 1;

  const auto apart = check_programs(representatives(job));
  job.of_place[4] = 1;
  const auto together = check_programs(representatives(job));

  ASSERT_FALSE(apart);
  EXPECT_EQ(apart.error().code, Errc::aborted);
  EXPECT_NE(
      apart.error().message.find("waits in operation 1, all_to_all on ep in 'forward of unit 1', for the "
                                 "rank at (5), whose trainer has 1 on ep"),
      std::string::npos)
      << apart.error().message;
  EXPECT_TRUE(together) << "the others never meet these two: " << together.error().message;
}

TEST(JobPrograms, AHundredThousandRanksWithOwnOperationsStayShort) {
  auto inputs = inputs_of(SomeJob{.ranks = 100'000, .units = 100, .elements = 100'000});
  const auto without = stored_bytes(plan_all(inputs).value().programs[0]);
  for (int unit = 0; unit < 100; ++unit) {
    for (const auto phase : {Phase::forward, Phase::backward}) {
      inputs.operations.push_back(operation(CollectiveKind::all_reduce, GroupKind::tp, {phase, unit}));
    }
  }

  const auto job = plan_all(inputs).value();

  EXPECT_EQ(job.programs.size(), 1U);
  EXPECT_GT(stored_bytes(job.programs[0]), without);
  EXPECT_LT(stored_bytes(job.programs[0]), without + 1000);
  EXPECT_TRUE(check_programs(representatives(job)));
}

RC_GTEST_PROP(JobPrograms, RanksThatShareAProgramHaveTheSameOne, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero3, Strategy::hsdp);
  const int outer = strategy == Strategy::ddp ? 1 : *rc::gen::inRange(1, 6);
  const int inner = *rc::gen::inRange(1, 6);
  const Mesh mesh = Mesh::create({.dp = outer * inner, .optimizer_instances = outer}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(3, {.tensors = {{.elements = 60 * outer * inner}}});
  inputs.lanes = outer * inner + *rc::gen::inRange(0, 40);

  const auto job = plan_all(inputs).value();

  for (int place = 0; place < outer * inner; ++place) {
    auto own = plan_program(inputs, coordinates_in(inputs.domains[0], mesh, {place})).value();
    const auto& shared =
        job.programs[static_cast<std::size_t>(job.of_place[static_cast<std::size_t>(place)])];
    own.coordinates = shared.coordinates;
    RC_ASSERT(own == shared);
  }
}

RC_GTEST_PROP(JobPrograms, KnownProgramsAreThoseThatWouldBePlanned, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero3);
  const int ranks = *rc::gen::inRange(1, 12);
  const Mesh mesh = Mesh::create({.dp = ranks}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(3, {.tensors = {{.elements = 60 * ranks}}});
  inputs.lanes = ranks + *rc::gen::inRange(0, 40);
  auto learned = inputs;
  learned.order = {.forward = {1, 0, 2}};
  KnownPrograms known;

  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = coordinates_in(inputs.domains[0], mesh, {rank});

    RC_ASSERT(known.plan(inputs, at).value() == plan_program(inputs, at).value());
    RC_ASSERT(known.plan(learned, at).value() == plan_program(learned, at).value());
    for (const auto& program : {plan_program(inputs, at).value(), plan_program(learned, at).value()})
      RC_ASSERT(known.lines(program) == compared_lines(program));
  }
}

TEST(JobPrograms, RanksThatSayTheSameShareItsLines) {
  KnownPrograms known;
  const auto first = known.share({"a", "b"});

  EXPECT_EQ(known.share({"a", "b"}), first);
  EXPECT_EQ(*known.share({"a"}), Lines{"a"});
  EXPECT_EQ(*first, (Lines{"a", "b"}));
}

TEST(JobPrograms, WhatCannotBePlannedIsNotKnown) {
  auto inputs = inputs_of(SomeJob{.strategy = Strategy::zero1, .ranks = 8, .elements = 1024});
  KnownPrograms known;
  inputs.parameter_credits = 0;

  EXPECT_FALSE(known.plan(inputs, {0}));
  EXPECT_FALSE(known.plan(inputs, {0}));
}

}  // namespace
}  // namespace troupe::core
