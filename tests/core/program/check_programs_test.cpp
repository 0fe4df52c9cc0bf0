#include "core/program/check_programs.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>

#include "core/program/job_programs.hpp"
#include "tests/core/program/some_operations.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

Mesh mesh_of(const SomeJob& job) {
  return Mesh::create({.dp = job.ranks, .optimizer_instances = job.outer}).value();
}

/// The programs of all ranks, one each, so that a test may spoil one.
struct WholeJob {
  explicit WholeJob(const SomeJob& some) : WholeJob(inputs_of(some), mesh_of(some)) {}
  WholeJob(const ProgramInputs& inputs, const Mesh& on) : mesh(on) {
    for (int rank = 0; rank < on.world().value; ++rank) {
      programs.push_back(plan_program(inputs, coordinates_in(inputs.domains[0], on, {rank})).value());
    }
  }

  Result<void> check() const {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    return check_programs(checked_job(mesh, all));
  }
  std::string message() const {
    const auto result = check();
    return result ? "" : result.error().message;
  }

  Mesh mesh;
  std::vector<Program> programs;
};

/// The entries of a segment, unfolded, so that one of them can be changed.
std::vector<ProgramEntry> unfolded(const ProgramSegment& segment) {
  std::vector<ProgramEntry> entries;
  for (const ProgramRun& run : segment.runs) {
    for (int i = 0; i < run.times; ++i) {
      for (const ProgramEntry& entry : run.entries) entries.push_back(shifted(entry, i * run.unit_step));
    }
  }
  return entries;
}

void change(Program& program, const std::function<void(std::vector<ProgramEntry>&)>& edit) {
  auto entries = unfolded(program.last_round);
  edit(entries);
  program.last_round.runs = {{.entries = std::move(entries), .times = 1}};
}

std::size_t find(const std::vector<ProgramEntry>& entries, TensorKind kind, int unit, std::size_t nth = 0) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].tensor.kind == kind && entries[i].tensor.unit == unit && nth-- == 0) return i;
  }
  ADD_FAILURE() << "there is no such entry";
  return 0;
}

TEST(CheckPrograms, EveryStrategyPasses) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto numerics : {Numerics::fast, Numerics::ordered}) {
      const WholeJob job({.strategy = strategy,
                          .ranks = 4,
                          .outer = strategy == Strategy::hsdp || strategy == Strategy::hfsdp ? 2 : 1,
                          .rounds = 3,
                          .numerics = numerics});

      EXPECT_EQ(job.message(), "") << name_of(strategy) << " " << name_of(numerics);
    }
  }
}

// Covers beyond-10.
TEST(CheckPrograms, NamesTwoEntriesOfOneRankThatChangedPlaces) {
  WholeJob job({.strategy = Strategy::zero2});
  change(job.programs[1], [](auto& entries) {
    auto& first = entries[find(entries, TensorKind::gradients, 3)];
    auto& second = entries[find(entries, TensorKind::gradients, 2)];
    std::swap(first.tensor, second.tensor);
  });

  EXPECT_EQ(job.check().error().code, Errc::mismatch);
  EXPECT_EQ(
      job.message(),
      "rank 0's entry 0, reduce_scatter of gradients 3.0 on dp_cp on stream 0 meets rank 1's entry 0, "
      "reduce_scatter of gradients 2.0 on dp_cp on stream 0; they differ in tensor: gradients 3.0 and "
      "gradients 2.0; one of them has changed places with rank 1's entry 1, reduce_scatter of gradients "
      "3.0 on dp_cp on stream 0");
}

TEST(CheckPrograms, NamesTheFieldInWhichTwoEntriesDiffer) {
  const auto spoilt = [](const std::function<void(ProgramEntry&)>& spoil) {
    WholeJob job({.strategy = Strategy::zero2});
    change(job.programs[1], [&](auto& entries) { spoil(entries[find(entries, TensorKind::gradients, 2)]); });
    return job.message();
  };
  const std::string met =
      "rank 0's entry 1, reduce_scatter of gradients 2.0 on dp_cp on stream 0 meets rank 1's entry 1, "
      "reduce_scatter of gradients 2.0 on dp_cp on stream 0; they differ in ";

  EXPECT_EQ(spoilt([](auto& entry) { entry.wire = DType::bf16; }), met + "dtype: f32 and bf16");
  EXPECT_EQ(spoilt([](auto& entry) { entry.elements = 512; }), met + "elements: 1024 and 512");
  EXPECT_EQ(spoilt([](auto& entry) {
              entry.counts = Counts::table({1024, 1023});
            }),
            met + "counts: 2x1024 and 1x1024,1x1023");
  EXPECT_EQ(spoilt([](auto& entry) { entry.chunk = 7; }), met + "chunk: 0 and 7");
}

// Covers beyond-10.
TEST(CheckPrograms, ADifferingLayoutIsNamedByItsEntry) {
  // One rank pads its units for 4 shards, the other for 2.
  WholeJob job({.strategy = Strategy::zero3});
  auto other = inputs_of(SomeJob{.strategy = Strategy::zero3, .elements = 1280});
  job.programs[1] = plan_program(other, {1}).value();

  EXPECT_EQ(job.message(),
            "rank 0's entry 0, all_gather of parameters 0.0 on dp_cp on stream 1 meets rank 1's entry 0, "
            "all_gather of parameters 0.0 on dp_cp on stream 1; they differ in elements: 1024 and 1280");
}

TEST(CheckPrograms, TrainerAwaitingWhatOnlyItReadiesIsACircle) {
  WholeJob job({.strategy = Strategy::zero3});
  for (auto& program : job.programs) {
    change(program, [](auto& entries) {
      entries[find(entries, TensorKind::parameters, 2)].ready = {Phase::forward, 2};
    });
  }

  EXPECT_EQ(job.check().error().code, Errc::aborted);
  EXPECT_EQ(
      job.message(),
      "a circle of 2 waits: rank 0's trainer, before 'forward of unit 2' of round 0, waits for entry 2; "
      "rank 0's entry 2, all_gather of parameters 2.0 on dp_cp on stream 1 may start after 'forward of "
      "unit 2'");
}

TEST(CheckPrograms, ACircleThroughTwoGroupsNamesAllOfIt) {
  // Both ranks reduce over two groups of the same members; one of them begins with the other group.
  WholeJob job({.strategy = Strategy::zero1, .ranks = 2});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    change(job.programs[rank], [&](auto& entries) {
      entries[1].group = GroupKind::dp;
      for (auto& entry : entries) entry.ready = {Phase::round_end, 0};
      if (rank == 1) std::swap(entries[0], entries[1]);
    });
  }

  EXPECT_EQ(job.check().error().code, Errc::aborted);
  EXPECT_EQ(
      job.message(),
      "a circle of 4 waits: rank 0's entry 0, reduce_scatter of gradients 3.0 on dp_cp on stream 0 waits "
      "for rank 1; rank 1's entry 1, reduce_scatter of gradients 3.0 on dp_cp on stream 0 is queued "
      "behind entry 0; rank 1's entry 0, reduce_scatter of gradients 2.0 on dp on stream 0 waits for "
      "rank 0; rank 0's entry 1, reduce_scatter of gradients 2.0 on dp on stream 0 is queued behind "
      "entry 0");
}

TEST(CheckPrograms, CreditThatComesBackTooLateIsACircle) {
  WholeJob job({.strategy = Strategy::zero3});
  for (auto& program : job.programs) {
    change(program, [](auto& entries) {
      entries[find(entries, TensorKind::parameters, 0)].takes->point = {Phase::forward, 3};
      entries[find(entries, TensorKind::parameters, 1)].takes->point = {Phase::forward, 3};
    });
  }

  EXPECT_EQ(
      job.message(),
      "a circle of 2 waits: rank 0's trainer, before 'forward of unit 2' of round 0, waits for entry 2; "
      "rank 0's entry 2, all_gather of parameters 2.0 on dp_cp on stream 1 waits for a slot of the pool "
      "of parameters");
}

TEST(CheckPrograms, ARankThatNeverLaunchesIsNamed) {
  WholeJob job({.strategy = Strategy::zero2});
  job.programs[1].epilogue.runs.pop_back();

  EXPECT_NE(job.message().find("waits for rank 1, whose program has no launch"), std::string::npos)
      << job.message();
}

TEST(CheckPrograms, CountsForAGroupOfAnotherSizeAreRefused) {
  WholeJob job({.strategy = Strategy::zero2});
  for (auto& program : job.programs) {
    change(program, [](auto& entries) { entries[0].counts = Counts::even(1024, 3); });
  }

  EXPECT_EQ(job.message(),
            "rank 0's entry 0, reduce_scatter of gradients 3.0 on dp_cp on stream 0 has counts of 3 members, "
            "but the group has 2");
}

using Kind = CollectiveKind;

/// A square of four ranks: 0 and 1 share the tensors of a layer, and so do 2 and 3; 0 and 2 share experts,
/// and so do 1 and 3. In the forward of unit 1 they sum over the former, then send rows to the latter.
WholeJob square(Strategy strategy = Strategy::zero3, int rounds = 1) {
  const Mesh mesh = Mesh::create({.tp = 2, .ep = 2, .dp = 2}).value();
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(3, {.tensors = {{.elements = 1024}}});
  inputs.lanes = 2 * rounds;
  inputs.operations = {operation(Kind::all_reduce, GroupKind::tp, {Phase::forward, 1}), counts_of_experts(1),
                       rows_of_experts(Phase::forward, 1), rows_of_experts(Phase::backward, 1)};
  return WholeJob(inputs, mesh);
}

/// The operations of a rank, one by one, so that one of them can be changed.
void change_operations(Program& program, const std::function<void(std::vector<TrainerOperation>&)>& edit) {
  auto operations = unfold(program.operations);
  edit(operations);
  program.operations = fold(std::move(operations));
}

TEST(CheckPrograms, TrainersOwnOperationsPassWithEveryStrategy) {
  for (const auto strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
    for (const int rounds : {1, 3}) EXPECT_EQ(square(strategy, rounds).message(), "") << name_of(strategy);
  }
}

// Covers beyond-11.
TEST(CheckPrograms, DifferentlyOrderedOperationsOnTwoGroupsAreACircle) {
  auto job = square();
  for (const std::size_t rank : {1U, 2U}) {
    change_operations(job.programs[rank], [](auto& operations) { std::swap(operations[0], operations[1]); });
  }

  EXPECT_EQ(job.check().error().code, Errc::aborted);
  EXPECT_EQ(
      job.message(),
      "a circle of 4 waits: rank 0's trainer, in 'forward of unit 1' of round 0, waits in operation 0, "
      "all_reduce on tp in 'forward of unit 1', for rank 1; rank 1's trainer, in 'forward of unit 1' of "
      "round 0, waits in operation 0, all_gather on ep in 'forward of unit 1', for rank 3; rank 3's "
      "trainer, in 'forward of unit 1' of round 0, waits in operation 0, all_reduce on tp in 'forward of "
      "unit 1', for rank 2; rank 2's trainer, in 'forward of unit 1' of round 0, waits in operation 0, "
      "all_gather on ep in 'forward of unit 1', for rank 0");
}

TEST(CheckPrograms, OperationsReorderedThatNobodyAwaitsAreNoCircle) {
  auto job = square();
  change_operations(job.programs[1], [](auto& operations) { std::swap(operations[0], operations[1]); });

  // Rank 1 meets rank 3 first, which is through with rank 2 by then, and rank 0 afterwards.
  EXPECT_EQ(job.message(), "");
}

TEST(CheckPrograms, SwappedOperationsOfAGroupAreNamed) {
  auto job = square();
  const auto gather = operation(Kind::all_gather, GroupKind::tp, {Phase::forward, 1});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    change_operations(job.programs[rank], [&](auto& operations) {
      operations.insert(operations.begin() + (rank == 1 ? 0 : 1), gather);
    });
  }

  EXPECT_EQ(job.check().error().code, Errc::mismatch);
  EXPECT_EQ(
      job.message(),
      "rank 0's operation 0, all_reduce on tp in 'forward of unit 1' of round 0 meets rank 1's operation "
      "0, all_gather on tp in 'forward of unit 1' of round 0; they differ in operation: all_reduce and "
      "all_gather; one of them has changed places with rank 1's operation 1, all_reduce on tp in "
      "'forward of unit 1' of round 0");
}

TEST(CheckPrograms, NamesWhatTwoOperationsDifferIn) {
  const auto spoilt = [](const std::function<void(TrainerOperation&)>& spoil) {
    auto job = square();
    change_operations(job.programs[2], [&](auto& operations) { spoil(operations[3]); });
    EXPECT_EQ(job.check().error().code, Errc::mismatch);
    return job.message();
  };
  const std::string met =
      "rank 0's operation 3, all_to_all on ep in 'backward of unit 1' of round 0 meets rank 2's operation 3, "
      "all_to_all on ep in 'backward of unit 1' of round 0; they differ in ";

  EXPECT_EQ(spoilt([](auto& one) { one.dtype = DType::bf16; }), met + "dtype: u8 and bf16");
  EXPECT_EQ(spoilt([](auto& one) { one.counts = Counts::bounded(95, 2); }),
            met + "counts: at most 2x96 and at most 2x95");
  EXPECT_EQ(spoilt([](auto& one) { one.counts = Counts::even(96, 2); }),
            met + "counts: at most 2x96 and 2x96");
  EXPECT_EQ(
      spoilt([](auto& one) { one.counts = Counts::bounded(96, 3); }),
      "rank 2's operation 3, all_to_all on ep in 'backward of unit 1' of round 0 has counts of 3 members, "
      "but the group has 2");
  EXPECT_EQ(
      spoilt([](auto& one) { one.point.unit = 0; }),
      "rank 0's operation 3, all_to_all on ep in 'backward of unit 1' of round 0 meets rank 2's operation "
      "3, all_to_all on ep in 'backward of unit 0' of round 0; they differ in place: backward of unit 1 "
      "and backward of unit 0");
}

TEST(CheckPrograms, MemberThatNeverComesToAnOperationIsNamed) {
  auto job = square(Strategy::zero1, 2);
  change_operations(job.programs[3], [](auto& operations) { operations.pop_back(); });

  // In the backward of the first round rank 1 meets what rank 3 posts in the forward of the second.
  EXPECT_EQ(job.check().error().code, Errc::mismatch);
  EXPECT_NE(job.message().find("rank 1's operation 3, all_to_all on ep in 'backward of unit 1' of round 0"),
            std::string::npos)
      << job.message();

  auto last = square(Strategy::zero1, 1);
  change_operations(last.programs[3], [](auto& operations) { operations.pop_back(); });
  EXPECT_EQ(last.check().error().code, Errc::aborted);
  EXPECT_NE(
      last.message().find("rank 1's trainer, in 'backward of unit 1' of round 0, waits in operation 3, "
                          "all_to_all on ep in 'backward of unit 1', for rank 3, whose trainer has 2 on "
                          "ep"),
      std::string::npos)
      << last.message();
}

TEST(CheckPrograms, OperationAndEntryAwaitingEachOtherAreACircle) {
  const Mesh mesh = Mesh::create({.ep = 2, .dp = 2}).value();
  auto inputs = inputs_of(Strategy::zero3, mesh).value();
  inputs.classes = {{}};
  inputs.units.assign(3, {.tensors = {{.elements = 1024}}});
  inputs.numerics = Numerics::fast;
  WholeJob job(inputs, mesh);
  // Rank 1 gathers unit 2 only after a point in which it waits for rank 0, which needs unit 2 to come there.
  job.programs[0].operations = fold({operation(Kind::all_reduce, GroupKind::ep, {Phase::forward, 2})});
  job.programs[1].operations = fold({operation(Kind::all_reduce, GroupKind::ep, {Phase::forward, 1})});
  change(job.programs[1], [](auto& entries) {
    entries[find(entries, TensorKind::parameters, 2)].ready = {Phase::forward, 1};
  });

  EXPECT_EQ(job.check().error().code, Errc::aborted);
  EXPECT_EQ(
      job.message(),
      "a circle of 4 waits: rank 0's trainer, before 'forward of unit 2' of round 0, waits for entry 2; "
      "rank 0's entry 2, all_gather of parameters 2.0 on dp_cp on stream 1 waits for rank 1; rank 1's entry "
      "2, all_gather of parameters 2.0 on dp_cp on stream 1 may start after 'forward of unit 1'; rank 1's "
      "trainer, in 'forward of unit 1' of round 0, waits in operation 0, all_reduce on ep in 'forward of "
      "unit "
      "1', for rank 0");
}

TEST(CheckPrograms, BoundedCountsThatNobodyToldAreNamed) {
  auto job = square();
  for (auto& program : job.programs) {
    change_operations(program, [](auto& operations) { operations.erase(operations.begin() + 1); });
  }

  EXPECT_EQ(job.check().error().code, Errc::mismatch);
  EXPECT_EQ(job.message().substr(0, 94),
            "rank 0: PR-5: all_to_all on ep in 'forward of unit 1' has bounded counts, at most 2x96, and no");
}

ProgramInputs random_inputs(const Mesh& mesh, Strategy strategy) {
  auto inputs = inputs_of(strategy, mesh).value();
  inputs.numerics = *rc::gen::element(Numerics::fast, Numerics::ordered);
  inputs.lanes = mesh.world().value * *rc::gen::inRange(1, 4) + *rc::gen::inRange(0, mesh.world().value);
  inputs.overlap = *rc::gen::element(true, false);
  inputs.separate_streams = *rc::gen::element(true, false);
  inputs.parameter_credits = *rc::gen::inRange(1, 4);
  inputs.gradient_credits = *rc::gen::inRange(1, 4);
  inputs.staging_elements = *rc::gen::inRange(0, 40);
  inputs.classes = {{}, {.storage = DType::bf16, .wire = DType::bf16}};
  if (inputs.numerics == Numerics::fast) inputs.classes.push_back({.domain = 1});
  const int units = *rc::gen::inRange(0, 7);
  for (int u = 0; u < units; ++u) {
    Unit unit;
    unit.residency = *rc::gen::element(Residency::resident, Residency::on_demand);
    unit.use = *rc::gen::element(UnitUse::none, UnitUse::forward, UnitUse::forward_and_backward,
                                 UnitUse::forward_and_backward);
    const int tensors = *rc::gen::inRange(0, 4);
    for (int t = 0; t < tensors; ++t) {
      const auto kind = *rc::gen::inRange<std::size_t>(0, inputs.classes.size());
      unit.tensors.push_back({kind, mesh.world().value * *rc::gen::inRange(0, 50),
                              unit.use != UnitUse::forward && *rc::gen::element(true, true, false)});
    }
    inputs.units.push_back(std::move(unit));
  }
  return inputs;
}

RC_GTEST_PROP(CheckPrograms, EveryPlannedProgramPasses, ()) {
  const auto strategy = *rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3,
                                          Strategy::hsdp, Strategy::hfsdp);
  const int outer = strategy == Strategy::ddp ? 1 : *rc::gen::inRange(1, 4);
  const int inner = *rc::gen::inRange(1, 5);
  const Mesh mesh = Mesh::create({.dp = outer * inner, .optimizer_instances = outer}).value();
  const auto inputs = random_inputs(mesh, strategy);
  const WholeJob job(inputs, mesh);

  RC_ASSERT(job.message() == "");
  RC_ASSERT(check_programs(representatives(plan_all(inputs).value())).has_value());
}

std::vector<TrainerOperation> random_operations(const Mesh& mesh, int units) {
  std::vector<TrainerOperation> operations;
  const int count = *rc::gen::inRange(1, 12);
  for (int i = 0; i < count; ++i) {
    const auto group = *rc::gen::element(GroupKind::tp, GroupKind::ep);
    const auto kind = *rc::gen::element(Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather,
                                        Kind::all_to_all, Kind::broadcast);
    const TrainerPoint point{*rc::gen::element(Phase::forward, Phase::backward), *rc::gen::inRange(0, units)};
    operations.push_back(operation(kind, group, point, DType::f32,
                                   Counts::even(*rc::gen::inRange(0, 9), mesh.group_size(group))));
  }
  return operations;
}

RC_GTEST_PROP(CheckPrograms, OperationsOfEveryPlannedProgramPass, ()) {
  const int ep = *rc::gen::inRange(1, 4);
  const Mesh mesh =
      Mesh::create({.tp = *rc::gen::inRange(1, 4), .ep = ep, .dp = ep * *rc::gen::inRange(1, 4)}).value();
  const int dp = mesh.sizes().dp;
  const int units = *rc::gen::inRange(1, 6);
  auto inputs =
      inputs_of(*rc::gen::element(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3), mesh)
          .value();
  inputs.classes = {{}};
  inputs.units.assign(static_cast<std::size_t>(units), {.tensors = {{.elements = 12 * dp}}});
  inputs.lanes = dp * *rc::gen::inRange(1, 4);
  inputs.operations = random_operations(mesh, units);
  if (*rc::gen::element(true, false)) {
    for (int unit = 1; unit < units; ++unit) inputs.order.forward.push_back(unit);
    inputs.order.forward.push_back(0);
  }
  const WholeJob job(inputs, mesh);

  RC_ASSERT(job.message() == "");
  const auto all = plan_all(inputs).value();
  RC_ASSERT(check_programs(representatives(all)).has_value());
}

}  // namespace
}  // namespace troupe::core
