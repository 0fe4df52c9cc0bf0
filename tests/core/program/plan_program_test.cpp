#include "core/program/plan_program.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/program/launch_cursor.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using Lines = std::vector<std::string>;

const std::string kVerdict = "  all_reduce of verdict group=world stream=0 dtype=i64 elements=1 counts=even ";

std::string verdict(int ranks) {
  return kVerdict + std::to_string(ranks) + "x1 after 'finish' before 'commit'";
}

Program on_one_stream(const SomeJob& job) {
  auto inputs = inputs_of(job);
  inputs.separate_streams = false;
  return plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
}

// Covers buffer-6.
TEST(PlanProgram, OfReplicasReducesInTheLastRound) {
  const auto program = on_one_stream({.strategy = Strategy::ddp, .units = 3, .rounds = 2});

  EXPECT_EQ(lines(program),
            (Lines{"last round:", " x3 unit-1:",
                   "  all_reduce of gradients 2.0 P->R group=dp_cp stream=0 dtype=f32 elements=1024 "
                   "counts=even 2x1024 after 'backward of unit 2' before 'finish'",
                   "end:", verdict(2)}));
}

// Covers buffer-6, unit-29.
TEST(PlanProgram, OfAShardedOptimizerPublishesInForwardOrder) {
  const auto program = on_one_stream({.strategy = Strategy::zero1, .units = 3});

  EXPECT_EQ(lines(program),
            (Lines{"last round:", " x3 unit-1:",
                   "  reduce_scatter of gradients 2.0 P->F group=dp_cp stream=0 dtype=f32 elements=1024 "
                   "counts=even 2x1024 after 'backward of unit 2' before 'finish'",
                   "end:", verdict(2), " x3 unit+1:",
                   "  all_gather of parameters 0.0 F->R group=dp_cp stream=0 dtype=bf16 elements=1024 "
                   "counts=even 2x512 after 'update of unit 0' before 'next_forward of unit 0'"}));
}

// Covers unit-11.
TEST(PlanProgram, OfFullShardingGathersTwiceAndReducesEachRound) {
  const auto program = on_one_stream({.strategy = Strategy::zero3, .units = 2});
  const auto gather = [](int unit, const std::string& phase, const std::string& after) {
    const auto u = std::to_string(unit);
    return "  all_gather of parameters " + u +
           ".0 F->R group=dp_cp stream=0 dtype=bf16 elements=1024 counts=even 2x512 after '" + after +
           "' before '" + phase + " of unit " + u + "' takes parameters until '" + phase + " of unit " + u +
           "'";
  };
  const auto reduce = [](int unit) {
    const auto u = std::to_string(unit);
    return "  reduce_scatter of gradients " + u +
           ".0 P->F group=dp_cp stream=0 dtype=f32 elements=1024 counts=even 2x1024 after 'backward of "
           "unit " +
           u + "' before 'round_end' gives gradients of 'backward of unit " + u + "'";
  };

  EXPECT_EQ(lines(program),
            (Lines{"last round:", " x2 unit+1:", gather(0, "forward", "round_begin"),
                   gather(1, "backward", "forward of unit 1"), gather(0, "backward", "forward of unit 1"),
                   " x2 unit-1:", reduce(1), "end:", verdict(2)}));
}

TEST(PlanProgram, OfHybridShardingAddsAFinalAllReduce) {
  const auto program = on_one_stream({.strategy = Strategy::hsdp,
                                      .ranks = 4,
                                      .outer = 2,
                                      .units = 1,
                                      .rounds = 3,
                                      .numerics = Numerics::ordered});
  const std::string gather =
      "all_gather of parameters 0.0 RF->RR group=intra_dp_cp stream=0 dtype=bf16 elements=1024 counts=even "
      "2x512 ";
  const std::string exchange =
      "  all_to_all of gradients 0.0 PP->PF group=intra_dp_cp stream=0 dtype=f32 elements=1024 counts=even "
      "2x1024 after 'backward of unit 0' before 'round_end' gives gradients of 'backward of unit 0'";
  const std::string forward =
      "  " + gather +
      "after 'round_begin' before 'forward of unit 0' takes parameters until 'forward of unit 0'";
  const std::string backward =
      "  " + gather +
      "after 'forward of unit 0' before 'backward of unit 0' takes parameters until 'backward of unit 0'";

  // Lanes 0-5 are the roots 0-3 and 4-5, lanes 6-11 the roots 6-7 and 8-11.
  EXPECT_EQ(
      lines(program),
      (Lines{"round x2:", forward, backward, exchange, "last round:", forward, backward, exchange,
             "  all_to_all of gradients 0.0 PF->FF group=inter_instance stream=0 dtype=f32 elements=512 "
             "counts=even 2x1024 after 'backward of unit 0' before 'finish'",
             "  all_gather of gradients 0.0 FF->RF group=inter_instance stream=0 dtype=f32 elements=512 "
             "counts=even 2x256 after 'backward of unit 0' before 'finish'",
             "end:", verdict(4)}));
}

TEST(PlanProgram, FullHybridShardingScattersAcrossReplicasAndPublishesShards) {
  const auto program = on_one_stream(
      {.strategy = Strategy::hfsdp, .ranks = 4, .outer = 2, .units = 1, .numerics = Numerics::fast});
  const auto text = lines(program);

  ASSERT_EQ(text.size(), 8U);
  EXPECT_EQ(text[4],
            "  reduce_scatter of gradients 0.0 PF->FF group=inter_instance stream=0 dtype=f32 elements=512 "
            "counts=even 2x512 after 'backward of unit 0' before 'finish'");
  EXPECT_EQ(text[7],
            "  all_gather of parameters 0.0 FF->RF group=inter_instance stream=0 dtype=bf16 elements=512 "
            "counts=even 2x256 after 'update of unit 0' before 'next_forward of unit 0'");
}

TEST(PlanProgram, OfSeveralOptimizerInstancesReducesShardsAcrossThem) {
  const auto program =
      on_one_stream({.strategy = Strategy::zero1, .ranks = 4, .outer = 2, .units = 1, .elements = 1000});

  EXPECT_EQ(
      lines(program),
      (Lines{"last round:",
             "  reduce_scatter of gradients 0.0 PP->PF group=intra_dp_cp stream=0 dtype=f32 elements=1000 "
             "counts=even 2x1000 after 'backward of unit 0' before 'finish'",
             "  all_reduce of gradients 0.0 PF->RF group=inter_instance stream=0 dtype=f32 elements=500 "
             "counts=even 2x500 after 'backward of unit 0' before 'finish'",
             "end:", verdict(4),
             "  all_gather of parameters 0.0 RF->RR group=intra_dp_cp stream=0 dtype=bf16 elements=1000 "
             "counts=even 2x500 after 'update of unit 0' before 'next_forward of unit 0'"}));
}

TEST(PlanProgram, OfOrderedNumericsExchangesSubtreeRoots) {
  auto inputs = inputs_of(SomeJob{
      .strategy = Strategy::zero1, .ranks = 3, .units = 1, .numerics = Numerics::ordered, .elements = 999});
  inputs.lanes = 8;

  // Lanes 0-2 are two roots, 3-5 are two, 6-7 are one.
  EXPECT_EQ(lines(plan_program(inputs, {0}).value(), {GroupKind::dp_cp, 0}).at(1),
            "  all_to_all of gradients 0.0 P->F group=dp_cp stream=0 dtype=f32 elements=999 counts=table "
            "2x1998,1x999");
}

TEST(PlanProgram, OfOrderedReplicasGathersTheReducedParts) {
  const auto program = on_one_stream(
      {.strategy = Strategy::ddp, .ranks = 3, .units = 1, .numerics = Numerics::ordered, .elements = 1000});

  EXPECT_EQ(lines(program, {GroupKind::dp_cp, 0}),
            (Lines{"last round:",
                   "  all_to_all of gradients 0.0 P->F group=dp_cp stream=0 dtype=f32 elements=1000 "
                   "counts=even 3x1000",
                   "  all_gather of gradients 0.0 F->R group=dp_cp stream=0 dtype=f32 elements=1000 "
                   "counts=table 1x334,2x333"}));
}

// Covers layout-8, adapter-3.
TEST(PlanProgram, ExpertTensorsHaveTheirOwnGroups) {
  const Mesh mesh = Mesh::create({.ep = 2, .dp = 8, .optimizer_instances = 2}).value();
  auto inputs = inputs_of(Strategy::zero1, mesh).value();
  inputs.numerics = Numerics::fast;
  inputs.separate_streams = false;
  inputs.classes = {{.domain = 1}};
  inputs.units = {{.tensors = {{.elements = 64}}}};

  const auto found = communicators(plan_program(inputs, {0, 0}).value());

  // Four ranks within each instance are two of the same expert.
  EXPECT_EQ(inputs.domains[1].sizes, (std::vector<int>{2, 2}));
  EXPECT_EQ(found, (std::vector<Communicator>{
                       {GroupKind::intra_edp, 0}, {GroupKind::inter_instance, 0}, {GroupKind::world, 0}}));
}

/// What ordered numerics cost: with lanes that divide evenly, the bytes of a reduce_scatter.
RC_GTEST_PROP(PlanProgram, EvenLanesExchangeWhatAReduceScatterTakes, ()) {
  const int ranks = *rc::gen::element(1, 2, 4, 8, 16);
  SomeJob job{.strategy = Strategy::zero1,
              .ranks = ranks,
              .units = 1,
              .rounds = *rc::gen::element(1, 2, 4),
              .elements = *rc::gen::inRange(1, 100) * std::int64_t{ranks}};
  const auto counts_of = [](const SomeJob& one) {
    return program_of(one).last_round.runs.at(0).entries.at(0).counts;
  };
  const auto fast = counts_of(job);
  job.numerics = Numerics::ordered;

  RC_ASSERT(counts_of(job) == fast);
}

TEST(PlanProgram, RanksWithoutALastLanePutNothingIn) {
  auto inputs = inputs_of(SomeJob{.ranks = 3, .units = 1, .numerics = Numerics::ordered, .elements = 999});
  inputs.lanes = 5;

  const auto program = plan_program(inputs, {2}).value();

  EXPECT_EQ(program.rounds, 2);
  const auto text = lines(program, {GroupKind::dp_cp, 0});
  EXPECT_EQ(text, (Lines{"round:",
                         "  all_to_all of gradients 0.0 P->F group=dp_cp stream=0 dtype=f32 elements=999 "
                         "counts=even 3x999",
                         "last round:",
                         "  all_to_all of gradients 0.0 P->F group=dp_cp stream=0 dtype=f32 elements=999 "
                         "counts=table 2x999,1x0"}));
}

TEST(PlanProgram, NarrowWiresCarrySingleLanesOnly) {
  const auto wires = [](Strategy strategy, int rounds) {
    auto inputs = inputs_of(SomeJob{.strategy = strategy,
                                    .ranks = 4,
                                    .outer = strategy == Strategy::hsdp ? 2 : 1,
                                    .units = 1,
                                    .rounds = rounds,
                                    .numerics = Numerics::ordered});
    inputs.classes[0].wire = DType::bf16;
    std::vector<DType> found;
    const auto program = plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
    for_each_launch(program, [&](const Launch& launch) {
      if (launch.entry->tensor.kind == TensorKind::gradients) found.push_back(launch.entry->wire);
    });
    return found;
  };
  using Wires = std::vector<DType>;

  EXPECT_EQ(wires(Strategy::zero1, 1), (Wires{DType::bf16}));
  EXPECT_EQ(wires(Strategy::zero1, 2), (Wires{DType::f32}));
  EXPECT_EQ(wires(Strategy::zero3, 2), (Wires{DType::bf16, DType::bf16}));
  EXPECT_EQ(wires(Strategy::hsdp, 1), (Wires{DType::bf16, DType::f32, DType::f32}));
}

/// So that no back-end adds in fewer bits: the receiver does.
TEST(PlanProgram, OfFastNumericsExchangesWhatANarrowWireRounds) {
  const auto reductions = [](Strategy strategy, int outer) {
    auto inputs = inputs_of(SomeJob{.strategy = strategy, .ranks = 4, .outer = outer, .units = 1});
    inputs.numerics = Numerics::fast;
    inputs.classes[0].wire = DType::bf16;
    inputs.staging_elements = 64;
    std::vector<ProgramEntry> found;
    const auto program = plan_program(inputs, std::vector<int>(inputs.domains[0].sizes.size(), 0)).value();
    for_each_launch(program, [&](const Launch& launch) {
      if (launch.entry->tensor.kind == TensorKind::gradients) found.push_back(*launch.entry);
    });
    for (const auto& entry : found) EXPECT_EQ(entry.wire, DType::bf16);
    return found;
  };

  const auto ddp = reductions(Strategy::ddp, 1);
  ASSERT_EQ(ddp.size(), 2U);
  EXPECT_EQ(ddp[0].operation, CollectiveKind::all_to_all);
  EXPECT_EQ(ddp[0].counts, Counts::even(ddp[0].elements, 4));
  EXPECT_EQ(ddp[1].operation, CollectiveKind::all_gather);
  EXPECT_EQ(ddp[1].counts, Counts::even(ddp[0].elements / 4, 4));
  for (const auto& entry : ddp) EXPECT_EQ(entry.chunk, 16);

  const auto hsdp = reductions(Strategy::hsdp, 2);
  ASSERT_GE(hsdp.size(), 3U);
  EXPECT_EQ(hsdp[0].operation, CollectiveKind::all_to_all);
  EXPECT_EQ(hsdp[0].to, (Placements{Placement::partial, Placement::flat_shard}));
  EXPECT_EQ(hsdp.back().operation, CollectiveKind::all_gather);
  EXPECT_EQ(hsdp.back().to, (Placements{Placement::replicated, Placement::flat_shard}));
}

// Covers finish-15.
TEST(PlanProgram, ResidentFrozenAndUnusedUnitsDoWhatTheyMust) {
  auto inputs = inputs_of(SomeJob{.units = 5});
  inputs.units[0].residency = Residency::resident;  // reduced each round, published once
  inputs.units[1].tensors[0].trainable = false;     // gathered twice
  inputs.units[2].use = UnitUse::none;              // nothing
  inputs.units[3].tensors.clear();                  // nothing
  inputs.units[4].use = UnitUse::forward;           // gathered once
  inputs.units[4].tensors[0].trainable = false;

  const auto program = plan_program(inputs, {0}).value();

  Lines found;
  for_each_launch(program, [&](const Launch& launch) { found.push_back(describe(*launch.entry)); });
  EXPECT_EQ(found, (Lines{"all_gather of parameters 1.0", "all_gather of parameters 4.0",
                          "all_gather of parameters 1.0", "reduce_scatter of gradients 0.0",
                          "all_reduce of verdict", "all_gather of parameters 0.0"}));
}

TEST(PlanProgram, UnitGathersFrozenTensorsAndReducesTheOthers) {
  auto inputs = inputs_of(SomeJob{.units = 1});
  inputs.units[0].tensors = {{.elements = 64}, {.elements = 32, .trainable = false}, {.elements = 16}};

  const auto program = plan_program(inputs, {0}).value();

  Lines found;
  int takes = 0;
  int gives = 0;
  for_each_launch(program, [&](const Launch& launch) {
    found.push_back(describe(*launch.entry));
    takes += launch.entry->takes ? 1 : 0;
    gives += launch.entry->gives ? 1 : 0;
  });
  EXPECT_EQ(
      found,
      (Lines{"all_gather of parameters 0.0", "all_gather of parameters 0.1", "all_gather of parameters 0.2",
             "all_gather of parameters 0.0", "all_gather of parameters 0.1", "all_gather of parameters 0.2",
             "reduce_scatter of gradients 0.0", "reduce_scatter of gradients 0.2", "all_reduce of verdict"}));
  EXPECT_EQ(takes, 2) << "one slot for all tensors of a unit";
  EXPECT_EQ(gives, 1);
}

// Covers unit-39.
TEST(PlanProgram, PoolSlotsComeInTurnAndRepeatPerSweep) {
  const auto program = program_of({.units = 3, .rounds = 2});

  std::vector<int> gathers;
  std::vector<int> reductions;
  for_each_launch(program, [&](const Launch& launch) {
    if (launch.entry->tensor.kind == TensorKind::parameters) gathers.push_back(launch.slot);
    if (launch.entry->tensor.kind == TensorKind::gradients) reductions.push_back(launch.slot);
  });
  EXPECT_EQ(gathers, (std::vector<int>{0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(reductions, (std::vector<int>{0, 1, 0, 0, 1, 0}));
}

TEST(PlanProgram, ACursorGoesThroughBodyLastRoundAndEnd) {
  const auto program = program_of({.strategy = Strategy::zero2, .units = 3, .rounds = 3});

  std::vector<std::string> found;
  for (LaunchCursor cursor(program); !cursor.at_end(); cursor.advance()) {
    const Launch launch = cursor.current();
    found.push_back(std::to_string(launch.round) + " " + describe(*launch.entry));
  }

  Lines expected;
  for (const std::string round : {"0", "1", "2"}) {
    for (const std::string unit : {"2", "1", "0"}) {
      expected.push_back(round + " reduce_scatter of gradients " + unit + ".0");
    }
  }
  expected.push_back("2 all_reduce of verdict");
  for (const std::string unit : {"0", "1", "2"}) {
    expected.push_back("2 all_gather of parameters " + unit + ".0");
  }
  EXPECT_EQ(found, expected);
}

TEST(PlanProgram, MembersOfAGroupHashAlikeOthersNeedNot) {
  // 14 lanes on 2 x 2 ranks: blocks of 7, whose inner parts lie differently in the tree.
  const Mesh mesh = Mesh::create({.dp = 4, .optimizer_instances = 2}).value();
  auto inputs = inputs_of(Strategy::zero1, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(2, {.tensors = {{.elements = 64}}});
  inputs.lanes = 14;
  std::vector<Program> programs;
  for (int rank = 0; rank < 4; ++rank) {
    programs.push_back(plan_program(inputs, {rank / 2, rank % 2}).value());
  }
  const auto hash_of = [&](int rank, GroupKind kind) {
    return hash(programs[static_cast<std::size_t>(rank)], {kind, 0});
  };

  EXPECT_EQ(hash_of(0, GroupKind::intra_dp_cp), hash_of(1, GroupKind::intra_dp_cp));
  EXPECT_EQ(hash_of(2, GroupKind::intra_dp_cp), hash_of(3, GroupKind::intra_dp_cp));
  EXPECT_NE(hash_of(0, GroupKind::intra_dp_cp), hash_of(2, GroupKind::intra_dp_cp));
  EXPECT_EQ(hash_of(0, GroupKind::inter_instance), hash_of(2, GroupKind::inter_instance));
  EXPECT_EQ(hash_of(0, GroupKind::world), hash_of(3, GroupKind::world));
  EXPECT_NE(hash_of(0, GroupKind::world), hash_of(0, GroupKind::inter_instance));
}

TEST(PlanProgram, HashesSeeEveryFieldThatMembersShare) {
  const auto program = program_of({.units = 1});
  const Communicator reductions{GroupKind::dp_cp, 0};
  const auto spoilt = [&](auto spoil) {
    Program other = program;
    spoil(other.last_round.runs.back().entries.back());
    return hash(other, reductions);
  };
  const auto original = hash(program, reductions);

  EXPECT_NE(spoilt([](ProgramEntry& e) { e.wire = DType::f16; }), original);
  EXPECT_NE(spoilt([](ProgramEntry& e) { e.elements = 1; }), original);
  EXPECT_NE(spoilt([](ProgramEntry& e) { e.counts = Counts::bounded(1024, 2); }), original);
  EXPECT_NE(spoilt([](ProgramEntry& e) { e.operation = CollectiveKind::all_to_all; }), original);
  EXPECT_NE(spoilt([](ProgramEntry& e) { e.tensor.tensor = 1; }), original);
  EXPECT_NE(spoilt([](ProgramEntry& e) { e.chunk = 5; }), original);
  EXPECT_EQ(spoilt([](ProgramEntry& e) {
              e.needed = {Phase::finish, 0};
            }),
            original)
      << "points are each rank's own";
}

TEST(PlanProgram, MisfitsAreErrorsThatSayWhatToDo) {
  const auto message = [](auto spoil) {
    auto inputs = inputs_of(SomeJob{.numerics = Numerics::ordered});
    spoil(inputs);
    return plan_program(inputs, {0}).error().message;
  };

  EXPECT_EQ(
      message([](auto& in) { in.lanes = 1; }),
      "1 lanes cannot be spread over 2 data-parallel ranks: every rank needs at least one lane; start at "
      "most 1 ranks or raise the number of lanes");
  EXPECT_EQ(message([](auto& in) { in.units[1].tensors[0].elements = 3; }),
            "unit 1 has a tensor of 3 elements, not divisible by its 2 shards; lay it out with padding "
            "for 2 shards");
  EXPECT_EQ(message([](auto& in) { in.classes[0].gradient = DType::bf16; }),
            "ordered numerics sum in f32, but gradients of unit 0 are bf16; keep them in f32 or choose fast "
            "numerics");
  EXPECT_EQ(message([](auto& in) { in.units[2].use = UnitUse::forward; }),
            "unit 2 has trainable parameters, but no backward; freeze them or let backward pass");
  EXPECT_EQ(message([](auto& in) { in.placements.optimizer = {Placement::replicated}; }),
            "gradients are sharded along axis 0, but the optimizer is replicated along it; shard both");
  EXPECT_EQ(message([](auto& in) { in.parameter_credits = 0; }), "pools have at least 1 slot, not 0 and 2");
}

TEST(PlanProgram, OfAHundredThousandRanksIsAFewKilobytes) {
  const SomeJob job{.strategy = Strategy::hsdp,
                    .ranks = 100'000,
                    .outer = 3'125,
                    .units = 400,
                    .rounds = 8,
                    .numerics = Numerics::ordered,
                    .elements = 32 * 1024};

  const auto program = program_of(job);

  EXPECT_LT(stored_entries(program), 60);
  EXPECT_LT(stored_bytes(program), 32 * 1024);
  std::int64_t launches = 0;
  for_each_launch(program, [&](const Launch&) { ++launches; });
  // Forward, backward and reduction in each of 8 rounds; exchange and gather across replicas; the verdict.
  EXPECT_EQ(launches, 400 * (8 * 3 + 2) + 1);
}

}  // namespace
}  // namespace troupe::core
