#include "core/program/recipes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/program/check_programs.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

/// What is done about the first entry that moves such a tensor in round `round`.
std::string recipe_of(const Program& program, TensorKind kind, int round = 0) {
  std::string found;
  for_each_launch(program, [&](const Launch& launch) {
    const ProgramEntry& entry = *launch.entry;
    if (!found.empty() || entry.tensor.kind != kind || launch.round != round) return;
    found = describe(program.recipes[static_cast<std::size_t>(round == 0 ? entry.first : entry.later)]);
  });
  return found;
}

TEST(Recipes, SayWhatAGatherWaitsForReadsAndWrites) {
  EXPECT_EQ(recipe_of(program_of({.strategy = Strategy::zero3}), TensorKind::parameters),
            "wait updated; wait released; post kept_parameters to full_parameters");
  EXPECT_EQ(recipe_of(program_of({.strategy = Strategy::zero1}), TensorKind::parameters),
            "wait updated; post kept_parameters to kept_parameters")
      << "what the optimizer stepped";
}

TEST(Recipes, OfLaterRoundsAddToWhatEarlierOnesLeft) {
  const auto program = program_of({.strategy = Strategy::zero2, .rounds = 3});

  EXPECT_EQ(
      recipe_of(program, TensorKind::gradients),
      "note; wait prepared; wait cleared; post full_gradients to sums; record exchanged; wait exchanged on "
      "sums; record reduced on sums; clear on sums; record cleared on sums; merged on sums");
  EXPECT_EQ(
      recipe_of(program, TensorKind::gradients, 1),
      "note; wait prepared; wait cleared; reserve; cut_sums; post full_gradients to arrived; record "
      "exchanged; wait exchanged on sums; accumulate arrived to sums on sums; record staged on sums; record "
      "reduced on sums; clear on sums; record cleared on sums; merged on sums");
  EXPECT_THAT(recipe_of(program, TensorKind::gradients, 2), HasSubstr("measure on sums; record reduced"))
      << "nothing is added after the last round";
}

TEST(Recipes, OfExchangesTakeAStagingCreditForEachChunk) {
  EXPECT_EQ(
      recipe_of(program_of({.strategy = Strategy::zero1, .numerics = Numerics::ordered}),
                TensorKind::gradients),
      "note; wait prepared; [reserve; cut_exchange; send; post sent to arrived; record exchanged; wait "
      "exchanged on sums; add_tree arrived to sums scaled on sums; record staged on sums]; measure on sums; "
      "record reduced on sums");
  EXPECT_EQ(
      recipe_of(program_of({.strategy = Strategy::zero1, .ranks = 1, .numerics = Numerics::ordered}),
                TensorKind::gradients),
      "note; wait prepared; [keep; record exchanged; wait exchanged on sums; add_tree arrived to sums scaled "
      "on sums]; measure on sums; record reduced on sums")
      << "alone, nothing is sent";
}

TEST(Recipes, EqualOnesAreThereOnce) {
  const auto program = program_of({.strategy = Strategy::zero3, .units = 40, .rounds = 4});

  // Gathers, reductions in the first round and in later ones, those of the last round, and the verdict.
  EXPECT_EQ(program.recipes.size(), 6u);
}

/// Checks one rank's program whose recipes were spoilt.
std::string spoilt(const SomeJob& job, const std::function<void(std::vector<Recipe>&)>& spoil) {
  auto program = program_of(job);
  spoil(program.recipes);
  const auto checked = check_recipes(program);
  return checked ? "" : checked.error().message;
}

void remove(std::vector<Recipe>& recipes, Action action, Mark mark = Mark::prepared) {
  for (auto& recipe : recipes) {
    for (auto* steps : {&recipe.before, &recipe.each_chunk, &recipe.after}) {
      std::erase_if(*steps, [&](const RecipeStep& step) {
        const bool is_of_mark = action == Action::wait || action == Action::record;
        return step.action == action && (!is_of_mark || step.mark == mark);
      });
    }
  }
}

// Covers beyond-10.
TEST(CheckRecipes, NamesAWaitThatNothingEnds) {
  const SomeJob job{.strategy = Strategy::hsdp, .ranks = 4, .outer = 2, .numerics = Numerics::ordered};

  EXPECT_EQ(spoilt(job, [](auto&) {}), "");
  EXPECT_EQ(spoilt(job, [](auto& recipes) { remove(recipes, Action::record, Mark::reduced); }),
            "PR-6: all_to_all of gradients 3.0 waits for 'reduced', which nothing before it records");
  EXPECT_EQ(spoilt(job, [](auto& recipes) { remove(recipes, Action::record, Mark::exchanged); }),
            "PR-6: all_to_all of gradients 3.0 waits for 'exchanged', which nothing before it records");
  EXPECT_EQ(spoilt(job, [](auto& recipes) { remove(recipes, Action::record, Mark::measured); }),
            "PR-6: all_reduce of verdict waits for 'measured', which nothing before it records");
}

TEST(CheckRecipes, NamesACreditNotGivenBackOrNotTaken) {
  const SomeJob job{.strategy = Strategy::zero2, .numerics = Numerics::ordered};

  EXPECT_EQ(spoilt(job, [](auto& recipes) { remove(recipes, Action::record, Mark::staged); }),
            "PR-6: all_to_all of gradients 3.0 takes a staging credit and does not give it back");
  EXPECT_EQ(spoilt(job, [](auto& recipes) { remove(recipes, Action::reserve); }),
            "PR-6: all_to_all of gradients 3.0 does 'post sent to arrived' without a staging credit");
  EXPECT_EQ(spoilt(job,
                   [](auto& recipes) {
                     for (auto& recipe : recipes)
                       std::erase_if(recipe.each_chunk, [](const RecipeStep& step) {
                         return step.from == Place::sent || step.from == Place::arrived ||
                                step.action == Action::reserve;
                       });
                   }),
            "PR-6: all_to_all of gradients 3.0 gives back a staging credit that it has not taken");
}

TEST(CheckRecipes, AnEntryWithoutARecipeIsNamed) {
  auto program = program_of({.strategy = Strategy::ddp});
  program.recipes.clear();

  EXPECT_THAT(check_recipes(program).error().message, HasSubstr("has recipe 0 of 0"));
}

// ---- Readiness: a trainer's collectives on devices that run all in launch order. ----

ProgramInputs at_points(const SomeJob& job, Residency residency) {
  auto inputs = inputs_of(job);
  inputs.ready_at_points = true;
  for (auto& unit : inputs.units) unit.residency = residency;
  return inputs;
}

std::vector<TrainerPoint> points_of_gradients(const Program& program) {
  std::vector<TrainerPoint> points;
  for_each_launch(program, [&](const Launch& launch) {
    if (launch.entry->tensor.kind == TensorKind::gradients) points.push_back(launch.entry->ready);
  });
  return points;
}

TEST(ReadyAtPoints, GradientsOfResidentUnitsAreReadyAtLanesEnd) {
  const SomeJob job{.strategy = Strategy::zero1, .units = 3};
  const TrainerPoint over{Phase::round_end, 0};

  EXPECT_THAT(points_of_gradients(plan_program(at_points(job, Residency::resident), {0}).value()),
              ElementsAre(over, over, over));
  EXPECT_THAT(points_of_gradients(plan_program(at_points(job, Residency::on_demand), {0}).value()),
              ElementsAre(TrainerPoint{Phase::backward, 2}, TrainerPoint{Phase::backward, 1},
                          TrainerPoint{Phase::backward, 0}))
      << "those of units on demand have points of their own";
}

TEST(ReadyAtPoints, ResidentUnitsReducePerRoundBehindTheLastBackward) {
  auto inputs = at_points({.strategy = Strategy::zero3, .units = 3, .rounds = 2}, Residency::on_demand);
  inputs.units[1].residency = Residency::resident;
  const TrainerPoint last{Phase::backward, 0};

  EXPECT_THAT(points_of_gradients(plan_program(inputs, {0}).value()),
              ElementsAre(TrainerPoint{Phase::backward, 2}, last, last, TrainerPoint{Phase::backward, 2},
                          last, last));
}

TEST(ReadyAtPoints, EveryStrategyPasses) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    const bool has_two_axes = strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
    auto inputs = at_points({.strategy = strategy, .ranks = 4, .outer = has_two_axes ? 2 : 1, .rounds = 3},
                            Residency::on_demand);
    inputs.units[0].residency = Residency::resident;
    const auto all = plan_all(inputs).value();

    const auto checked = check_programs(representatives(all));
    EXPECT_TRUE(checked) << name_of(strategy) << ": " << checked.error().message;
  }
}

TEST(ReadyAtPoints, RanksThatDifferInItAreNamed) {
  const SomeJob job{.strategy = Strategy::ddp};
  const auto one = plan_program(inputs_of(job), {0}).value();
  const auto other = plan_program(at_points(job, Residency::on_demand), {1}).value();

  const auto checked = check_programs(checked_job(Mesh::create({.dp = 2}).value(), {&one, &other}));
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Errc::mismatch);
  EXPECT_THAT(checked.error().message,
              HasSubstr("of rank 0 and rank 1 one calls entries ready at the ends of points"));
}

TEST(ReadyAtPoints, LinesThatRanksCompareSayIt) {
  const SomeJob job{.strategy = Strategy::ddp};
  const auto lines = lines_with_recipes(plan_program(at_points(job, Residency::resident), {0}).value());

  EXPECT_EQ(lines.front(), "ready at the ends of points alone");
  EXPECT_THAT(
      lines,
      Contains(HasSubstr("after 'round_end' before 'finish': note; wait prepared; post sums to sums")));
  EXPECT_NE(lines, lines_with_recipes(plan_program(inputs_of(job), {0}).value()));
}

TEST(ProgramFile, KeepsRecipesAndReadiness) {
  const auto all =
      plan_all(at_points({.strategy = Strategy::zero2, .rounds = 2}, Residency::on_demand)).value();
  const auto read = parse_program_file(to_text(file_of(all)));

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->parts.front().program, all.programs.front());
}

}  // namespace
}  // namespace troupe::core
