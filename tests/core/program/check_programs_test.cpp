#include "core/program/check_programs.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>

#include "core/program/job_programs.hpp"
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

TEST(CheckPrograms, ADifferingLayoutIsNamedByItsEntry) {
  // One rank pads its units for 4 shards, the other for 2.
  WholeJob job({.strategy = Strategy::zero3});
  auto other = inputs_of(SomeJob{.strategy = Strategy::zero3, .elements = 1280});
  job.programs[1] = plan_program(other, {1}).value();

  EXPECT_EQ(job.message(),
            "rank 0's entry 0, all_gather of parameters 0.0 on dp_cp on stream 1 meets rank 1's entry 0, "
            "all_gather of parameters 0.0 on dp_cp on stream 1; they differ in elements: 1024 and 1280");
}

TEST(CheckPrograms, ATrainerThatWaitsForWhatOnlyItMakesReadyIsACircleOfTwo) {
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

TEST(CheckPrograms, ACreditThatComesBackTooLateIsACircle) {
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

}  // namespace
}  // namespace troupe::core
