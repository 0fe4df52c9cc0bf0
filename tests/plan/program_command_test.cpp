#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/troupe/plan/capacity_report.hpp"
#include "apps/troupe/plan/program_report.hpp"

namespace troupe::apps {
namespace {

TEST(PlanProgramCommand, PrintsEntriesHashesAndWhatIsHidden) {
  const auto text =
      report_program({.program = {.strategy = "zero1", .ranks = 2, .units = 1, .unit_elements = 100}})
          .value();

  // 100 elements are padded to 128.
  EXPECT_EQ(
      text.substr(0, text.find("\n\n")),
      "last round:\n"
      "  all_to_all of gradients 0.0 P->F group=dp_cp stream=0 dtype=f32 elements=128 counts=even 2x128 "
      "after 'backward of unit 0' before 'finish'\n"
      "end:\n"
      "  all_reduce of verdict group=world stream=0 dtype=i64 elements=1 counts=even 2x1 after 'finish' "
      "before 'commit'\n"
      "  all_gather of parameters 0.0 F->R group=dp_cp stream=0 dtype=bf16 elements=128 counts=even 2x64 "
      "after 'update of unit 0' before 'next_forward of unit 0'");
  EXPECT_NE(text.find("1 gathers, 0 of them under compute; 1 reductions, 0 of them under compute"),
            std::string::npos);
}

TEST(PlanProgramCommand, OverlapCountsOfTheReferenceComeOutAsJson) {
  const auto json = nlohmann::json::parse(
      report_program({.program = {.strategy = "zero3", .ranks = 2, .rounds = 2, .units = 4, .json = true}})
          .value());

  EXPECT_EQ(json["gathers"], 16);
  EXPECT_EQ(json["reductions"], 8);
  EXPECT_EQ(json["hidden_gathers"], 12);
  EXPECT_EQ(json["hidden_reductions"], 6);
}

TEST(PlanCheckCommand, LetsAHundredThousandRanksPass) {
  const auto json = nlohmann::json::parse(
      report_check({.strategy = "hsdp", .ranks = 100'000, .outer = 3'125, .rounds = 3, .json = true})
          .value());

  EXPECT_EQ(json["ranks"], 100'000);
  EXPECT_LE(json["programs"], 3);
}

TEST(PlanCheckCommand, RefusesWhatItCannotLookThrough) {
  EXPECT_EQ(report_check({.rounds = 1024, .units = 10'000}).error().message,
            "10000 units in 1024 rounds are up to 30720000 launches of a rank, and a check takes 1000000; "
            "rounds are alike, so fewer of them check the same");
}

TEST(PlanCapacityCommand, CountsEveryStrategyOfTheMesh) {
  CapacityArguments arguments;
  arguments.program = {.numerics = "fast", .ranks = 4, .units = 8, .unit_elements = 1 << 20};
  arguments.memory_gib = 0.1;

  const auto found = capacities(arguments).value();

  ASSERT_EQ(found.size(), 4U);
  const std::int64_t elements = 8 << 20;
  EXPECT_EQ(found[0].memory.at_rest(), elements * (2 + 4 + 4 + 8)) << "ddp";
  EXPECT_EQ(found[1].memory.at_rest(), elements * (2 + 4) + elements / 4 * 12) << "zero1";
  EXPECT_EQ(found[2].memory.at_rest(), elements * 2 + elements / 4 * 16) << "zero2";
  EXPECT_EQ(found[3].memory.at_rest(), elements / 4 * 18) << "zero3";
  EXPECT_EQ(found[3].memory.parameter_pool, 2 * (1 << 20) * 2);
  EXPECT_FALSE(found[0].fits);
  EXPECT_TRUE(found[3].fits);
  // Twice the parameters for the gathers of zero3, once the gradients; three quarters of each leave the rank.
  // The verdict's one word goes to the three others.
  EXPECT_EQ(found[3].sent_bytes, elements * 3 / 4 * (2 * 2 + 4) + 3 * 8);
}

TEST(PlanCapacityCommand, TakesAHundredThousandRanksOnTwoAxes) {
  CapacityArguments arguments;
  arguments.program = {.ranks = 100'000, .outer = 3'125, .rounds = 3, .units = 96};
  arguments.strategies = {"hsdp", "hfsdp"};

  const auto found = capacities(arguments).value();

  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].memory.optimizer, std::int64_t{96} * (1 << 20) / 32 * 8);
  EXPECT_LT(found[1].memory.optimizer, found[0].memory.optimizer / 2000);
}

TEST(PlanCapacityCommand, CountsWhatEachOptimizerKeeps) {
  const auto optimizer_bytes = [](const char* name) {
    CapacityArguments arguments;
    arguments.program = {.ranks = 4, .units = 8, .optimizer = name};
    arguments.strategies = {"zero1"};
    return capacities(arguments).value()[0].memory.optimizer;
  };
  const std::int64_t elements = (8 << 20) / 4;
  EXPECT_EQ(optimizer_bytes("sgd"), 0);
  for (const char* name : {"momentum", "lion", "muon"})
    EXPECT_EQ(optimizer_bytes(name), 4 * elements) << name;
  for (const char* name : {"adam", "adamw"}) EXPECT_EQ(optimizer_bytes(name), 8 * elements) << name;
}

TEST(PlanCapacityCommand, SaysWhyAStrategyDoesNotFitTheAxes) {
  CapacityArguments arguments;
  arguments.program = {.ranks = 4, .outer = 2};
  arguments.strategies = {"ddp"};

  EXPECT_NE(capacities(arguments).error().message.find("ddp cannot have 2 optimizer instances"),
            std::string::npos);
}

TEST(PlanCapacityCommand, ShowsMemoryByKind) {
  const auto json = report_capacity({.program = {.ranks = 2, .json = true}}).value();

  for (const char* kind : {"parameters", "gradients", "main", "optimizer", "parameter_pool", "gradient_pool",
                           "staging", "scratch", "checks", "total"}) {
    EXPECT_NE(json.find(std::string("\"") + kind + "_bytes\":"), std::string::npos) << kind;
  }
}

}  // namespace
}  // namespace troupe::apps
