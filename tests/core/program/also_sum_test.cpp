#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/program/check_programs.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Strategy kStrategies[] = {Strategy::ddp,   Strategy::zero1, Strategy::zero2,
                                    Strategy::zero3, Strategy::hsdp,  Strategy::hfsdp};

/// Two data-parallel pairs of ranks of a tensor-parallel pair each, with two units: a tensor whose gradient
/// is the rank's own, and one whose gradient is also summed over the pair.
struct Pairs {
  Mesh mesh;
  ProgramInputs inputs;
  std::vector<Program> programs;

  explicit Pairs(Strategy strategy, Numerics numerics = Numerics::ordered, bool overlap = true,
                 std::int64_t staging = 0)
      : mesh(Mesh::create({.tp = 2, .dp = 4, .optimizer_instances = has_copies(strategy) ? 2 : 1}).value()),
        inputs(inputs_of(strategy, mesh).value()) {
    inputs.classes = {
        {.storage = DType::bf16, .optimizer = {"adamw", {DType::f32, DType::f32}}},
        {.optimizer = {"adamw", {DType::f32, DType::f32}}, .also_sum = AlsoSum{GroupKind::tp, 2}}};
    inputs.units.assign(
        2, {.tensors = {{.tensor_class = 0, .elements = 1024}, {.tensor_class = 1, .elements = 256}}});
    inputs.numerics = numerics;
    inputs.overlap = overlap;
    inputs.staging_elements = staging;
    inputs.lanes = 8;
    inputs.separate_streams = false;
    for (int rank = 0; rank < mesh.world().value; ++rank) {
      programs.push_back(plan_program(inputs, coordinates_in(inputs.domains[0], mesh, {rank})).value());
    }
  }

  static bool has_copies(Strategy strategy) {
    return strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
  }
  std::string message() const {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    const auto checked = check_programs(checked_job(mesh, all));
    return checked ? "" : checked.error().message;
  }
};

std::vector<std::string> gradient_launches(const Program& program, int round) {
  std::vector<std::string> found;
  for_each_launch(program, [&](const Launch& launch) {
    if (launch.entry->tensor.kind == TensorKind::gradients && launch.round == round)
      found.push_back(describe(*launch.entry));
  });
  return found;
}

void change_last_round(Program& program, const std::function<void(std::vector<ProgramEntry>&)>& edit) {
  std::vector<ProgramEntry> entries;
  for (const ProgramRun& run : program.last_round.runs) {
    for (int i = 0; i < run.times; ++i) {
      for (const ProgramEntry& entry : run.entries) entries.push_back(shifted(entry, i * run.unit_step));
    }
  }
  edit(entries);
  program.last_round.runs = {{.entries = std::move(entries), .times = 1}};
}

std::size_t sum_of_unit(const std::vector<ProgramEntry>& entries, int unit) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const ProgramEntry& entry) {
    return is_also_sum(entry) && entry.tensor.unit == unit;
  });
  EXPECT_NE(found, entries.end());
  return static_cast<std::size_t>(found - entries.begin());
}

// Covers finish-6.
TEST(AlsoSum, ComesOncePerStepAfterTheLastReduction) {
  for (const auto strategy : kStrategies) {
    for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
      for (const bool overlap : {true, false}) {
        const Pairs pairs(strategy, numerics, overlap);

        EXPECT_EQ(pairs.message(), "") << name_of(strategy);
        for (const Program& program : pairs.programs) {
          std::vector<int> sums, reduced;  // of unit 0
          int place = 0;
          for_each_launch(program, [&](const Launch& launch) {
            const ProgramEntry& entry = *launch.entry;
            ++place;
            if (entry.tensor != TensorReference{TensorKind::gradients, 0, 1}) return;
            if (is_also_sum(entry)) {
              sums.push_back(place);
              EXPECT_EQ(launch.round, program.rounds - 1);
              EXPECT_EQ(entry.group, GroupKind::tp);
              EXPECT_EQ(entry.counts.members(), 2);
            } else if (entry.operation != CollectiveKind::all_gather) {
              reduced.push_back(place);
            }
          });
          ASSERT_EQ(sums.size(), 1u) << name_of(strategy);
          ASSERT_FALSE(reduced.empty());
          EXPECT_GT(sums[0], reduced.back()) << name_of(strategy);
        }
      }
    }
  }
}

// Covers finish-6.
TEST(AlsoSum, TakesOwnedElementsBeforeOthersGetThem) {
  EXPECT_THAT(
      gradient_launches(Pairs(Strategy::ddp).programs[0], 1),
      ElementsAre("all_to_all of gradients 1.0", "all_gather of gradients 1.0", "all_to_all of gradients 1.1",
                  "sum over tp of gradients 1.1", "all_gather of gradients 1.1",
                  "all_to_all of gradients 0.0", "all_gather of gradients 0.0", "all_to_all of gradients 0.1",
                  "sum over tp of gradients 0.1", "all_gather of gradients 0.1"));
  EXPECT_THAT(gradient_launches(Pairs(Strategy::zero3).programs[0], 1),
              ElementsAre("all_to_all of gradients 1.0", "all_to_all of gradients 1.1",
                          "sum over tp of gradients 1.1", "all_to_all of gradients 0.0",
                          "all_to_all of gradients 0.1", "sum over tp of gradients 0.1"));
  EXPECT_THAT(gradient_launches(Pairs(Strategy::zero3).programs[0], 0),
              ElementsAre("all_to_all of gradients 1.0", "all_to_all of gradients 1.1",
                          "all_to_all of gradients 0.0", "all_to_all of gradients 0.1"));
  EXPECT_THAT(gradient_launches(Pairs(Strategy::ddp, Numerics::fast).programs[0], 1),
              ElementsAre("all_reduce of gradients 1.0", "all_reduce of gradients 1.1",
                          "sum over tp of gradients 1.1", "all_reduce of gradients 0.0",
                          "all_reduce of gradients 0.1", "sum over tp of gradients 0.1"));
  const auto lines = core::lines(Pairs(Strategy::zero1).programs[0]);
  EXPECT_THAT(lines, Contains(HasSubstr("sum over tp of gradients 1.1 F->F group=tp stream=0 dtype=f32 "
                                        "elements=128 counts=even")));
}

/// 256 elements of a unit's summed tensor, of which each of four ranks owns 64; two members.
TEST(AlsoSum, IsCountedInTrafficAndMemory) {
  const auto bytes_over_tp = [](const Program& program) {
    for (const auto& one : traffic_of(program)) {
      if (one.communicator.group == GroupKind::tp) return one.bytes;
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(bytes_over_tp(Pairs(Strategy::zero1).programs[0]), 2 * 64 * 4);
  EXPECT_EQ(bytes_over_tp(Pairs(Strategy::zero3).programs[0]), 2 * 64 * 4);
  EXPECT_EQ(bytes_over_tp(Pairs(Strategy::ddp).programs[0]), 2 * 64 * 4) << "on what a rank owns";
  EXPECT_EQ(bytes_over_tp(Pairs(Strategy::ddp, Numerics::fast).programs[0]), 2 * 256 * 4);

  // Alone on its data-parallel axis a rank owns all of it, and receives what both members have.
  ProgramInputs inputs = inputs_of(Strategy::ddp, Mesh::create({.tp = 2}).value()).value();
  inputs.classes = {{.also_sum = AlsoSum{GroupKind::tp, 2}}};
  inputs.units = {{.tensors = {{.elements = 256}}}};
  EXPECT_EQ(memory_of(plan_program(inputs, {0}).value()).incoming, 2 * 256 * 4);
  inputs.staging_elements = 60;
  const auto in_parts = plan_program(inputs, {0}).value();
  EXPECT_EQ(memory_of(in_parts).incoming, 60 * 4);
  EXPECT_THAT(core::lines(in_parts), Contains(HasSubstr("sum over tp of gradients 0.0 R->R")).Times(0));
  EXPECT_THAT(core::lines(in_parts), Contains(HasSubstr("sum over tp of gradients 0.0 F->F")));
  EXPECT_THAT(core::lines(in_parts), Contains(HasSubstr("chunk=30 after")));
}

// Covers finish-15.
TEST(AlsoSum, MissingDoubledOrMisplacedIsNamed) {
  Pairs missing(Strategy::zero1);
  change_last_round(missing.programs[3], [](auto& entries) {
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(sum_of_unit(entries, 1)));
  });
  EXPECT_EQ(missing.message(), "PR-4: rank 3 sums gradients 1.1 over tp 0 times per step, not once");

  Pairs doubled(Strategy::zero1);
  change_last_round(doubled.programs[2], [](auto& entries) {
    const auto place = static_cast<std::ptrdiff_t>(sum_of_unit(entries, 0));
    entries.insert(entries.begin() + place, entries[static_cast<std::size_t>(place)]);
  });
  EXPECT_EQ(doubled.message(), "PR-4: rank 2 sums gradients 0.1 over tp 2 times per step, not once");

  Pairs early(Strategy::zero1);
  change_last_round(early.programs[0], [](auto& entries) {
    const auto place = sum_of_unit(entries, 1);
    std::swap(entries[place], entries[place - 1]);
  });
  EXPECT_EQ(early.message(), "PR-4: rank 0 sums gradients 1.1 over tp before its last reduction");

  Pairs swapped(Strategy::zero1, Numerics::ordered, false);
  change_last_round(swapped.programs[5], [](auto& entries) {
    auto moved = entries[sum_of_unit(entries, 1)];
    entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(sum_of_unit(entries, 1)));
    entries.push_back(moved);
  });
  EXPECT_EQ(
      swapped.message(),
      "PR-4: rank 5 sums gradients 0.1 over tp before a tensor that is reduced earlier; sums come in the "
      "order of the reductions");

  Pairs unasked(Strategy::zero1);
  change_last_round(unasked.programs[1],
                    [](auto& entries) { entries[sum_of_unit(entries, 1)].tensor.tensor = 0; });
  EXPECT_EQ(unasked.message(),
            "PR-4: rank 1 has a sum over tp of gradients 1.0 of 2 members, which its class does not ask for");
}

/// Ranks that own the same must have laid it out alike.
// Covers finish-14.
TEST(AlsoSum, OfAnotherLayoutOnOneMemberIsAMismatch) {
  Pairs pairs(Strategy::zero1);
  change_last_round(pairs.programs[1], [](auto& entries) { entries[sum_of_unit(entries, 1)].elements += 2; });

  EXPECT_THAT(pairs.message(), AllOf(HasSubstr("sum over tp of gradients 1.1"),
                                     HasSubstr("they differ in elements: 128 and 130")));
}

TEST(AlsoSum, OfAClassThatCannotHaveOneIsRefused) {
  ProgramInputs inputs = Pairs(Strategy::zero1).inputs;
  for (const AlsoSum wrong :
       {AlsoSum{GroupKind::world, 8}, AlsoSum{GroupKind::dp_cp, 4}, AlsoSum{GroupKind::tp, 1}}) {
    inputs.classes[1].also_sum = wrong;
    const auto refused = plan_program(inputs, {0});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("gradients cannot also be summed over"));
  }
}

/// What `troupe plan check` does with files: each rank's group of members elsewhere stands for itself.
TEST(AlsoSum, GoesThroughFilesAndTheirCheck) {
  for (const auto strategy : kStrategies) {
    const Pairs pairs(strategy);
    const auto file = file_of(plan_all(pairs.inputs).value());

    const auto read = parse_program_file(to_text(file)).value();

    ASSERT_EQ(read.parts.size(), file.parts.size());
    for (std::size_t i = 0; i < file.parts.size(); ++i)
      EXPECT_EQ(read.parts[i].program, file.parts[i].program);
    const std::vector<NamedProgramFile> files{{"one", read}};
    auto job = join_files(files).value();
    EXPECT_TRUE(check_programs(representatives(job))) << name_of(strategy);

    change_last_round(job.programs[0], [](auto& entries) {
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(sum_of_unit(entries, 0)));
    });
    const auto refused = check_programs(representatives(job));
    ASSERT_FALSE(refused) << name_of(strategy);
    EXPECT_THAT(refused.error().message, HasSubstr("sums gradients 0.1 over tp 0 times per step, not once"));
  }
}

TEST(AlsoSum, FilesWithImpossibleGroupsOrTensorsAreRefused) {
  auto file = file_of(plan_all(Pairs(Strategy::zero1).inputs).value());
  file.parts[0].program.classes[1].also_sum->members = 1;
  EXPECT_THAT(parse_program_file(to_text(file)).error().message,
              HasSubstr("gradients are also summed over 1 ranks of tp"));

  Pairs pairs(Strategy::zero1);
  change_last_round(pairs.programs[0],
                    [](auto& entries) { entries[sum_of_unit(entries, 0)].tensor.tensor = 7; });
  EXPECT_THAT(pairs.message(), HasSubstr("which its class does not ask for"));
}

}  // namespace
}  // namespace troupe::core
