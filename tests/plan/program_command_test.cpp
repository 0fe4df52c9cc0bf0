#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/troupe/plan/program_inputs.hpp"
#include "apps/troupe/plan/program_report.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/memory.hpp"
#include "core/program/plan_program.hpp"

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

TEST(PlanProgramCommand, FollowsADeclaredOrder) {
  ProgramArguments arguments{
      .strategy = "zero3", .ranks = 2, .units = 3, .forward_order = {2, 0, 1}, .resident_elements = 64};
  const auto gathers = [&] {
    const auto program = core::plan_program(program_inputs(arguments).value(), {0}).value();
    std::vector<int> units;
    core::for_each_launch(program, [&](const core::Launch& launch) {
      if (launch.entry->takes) units.push_back(launch.entry->tensor.unit);
    });
    return units;
  };

  // What lies outside of units is unit 0 of the program.
  EXPECT_EQ(gathers(), (std::vector<int>{3, 1, 2, 2, 1, 3}));
  arguments.backward_order = {0, 1, 2};
  EXPECT_EQ(gathers(), (std::vector<int>{3, 1, 2, 1, 2, 3}));
  EXPECT_TRUE(report_check(arguments));
  arguments.backward_order = {0, 1, 1};
  EXPECT_EQ(report_program({.program = arguments}).error().message,
            "the backward order has unit 1 twice, at places 1 and 2; it has each of 3 units once");
}

TEST(PlanProgramCommand, OfAPipelineStageFollowsItsListOfPasses) {
  const ProgramArguments two{.strategy = "zero3", .ranks = 2, .rounds = 2, .stages = 2, .units = 1};
  const auto text = report_program({.program = two}).value();

  // F0 F1 B0 B1.
  std::vector<std::string> gathers;
  for (std::size_t at = text.find("  all_gather of parameters"); at < text.find("end:");
       at = text.find("  all_gather of parameters", at + 1)) {
    const auto line = text.substr(at, text.find('\n', at) - at);
    gathers.push_back(line.substr(line.find("after")));
  }
  EXPECT_EQ(gathers,
            (std::vector<std::string>{
                "after 'round_begin' before 'forward of unit 0' takes parameters until 'forward of unit "
                "0'",
                "after 'forward of unit 0 -1 rounds' before 'forward of unit 0' takes parameters until "
                "'forward of unit 0'",
                "after 'forward of unit 0 +1 rounds' before 'backward of unit 0' takes parameters until "
                "'backward of unit 0'",
                "after 'backward of unit 0 -1 rounds' before 'backward of unit 0' takes parameters until "
                "'backward of unit 0'"}));
  auto plain = two;
  plain.stages = 1;
  plain.strategy = "zero1";
  auto staged = two;
  staged.strategy = "zero1";
  EXPECT_EQ(report_program({.program = staged}).value(), report_program({.program = plain}).value())
      << "where nothing moves in rounds";
}

TEST(PlanProgramCommand, SaysWhatAStageCannotHave) {
  EXPECT_EQ(report_program({.program = {.stages = 2, .stage = 2}}).error().message,
            "--stage 2: there are 2 stages, counted from 0");
  EXPECT_EQ(report_program(
                {.program = {.rounds = 2, .stages = 2, .schedule = "interleaved", .chunks = 2, .units = 3}})
                .error()
                .message,
            "--chunks 2: chunks of a stage have as many units each, which 3 units do not give");
}

TEST(PlanCheckCommand, PassesEverySchedulesStagesOnAHundredThousandRanks) {
  for (const auto& [schedule, chunks] :
       {std::pair{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zero_bubble", 1}}) {
    for (const int stage : {0, 3}) {
      const auto checked = report_check({.strategy = "hsdp",
                                         .ranks = 100'000,
                                         .outer = 3'125,
                                         .rounds = 8,
                                         .stages = 4,
                                         .stage = stage,
                                         .schedule = schedule,
                                         .chunks = chunks,
                                         .json = true});
      ASSERT_TRUE(checked) << schedule << ": " << checked.error().message;
      EXPECT_LE(nlohmann::json::parse(*checked)["programs"], 3);
    }
  }
}

TEST(PlanProgramCommand, LetsSeveralRanksShareALane) {
  const ProgramArguments job{.strategy = "zero1", .ranks = 4, .rounds = 3, .context_parallel = 2, .units = 1};
  const auto text = report_program({.program = job}).value();

  // Three lanes of a rank are two sums; of the four ranks each has the same number, of one piece.
  EXPECT_NE(text.find("group=dp_cp stream=0 dtype=f32 elements=1048576 counts=even 4x2097152"),
            std::string::npos)
      << text;
  EXPECT_TRUE(report_check(job));
  auto wrong = job;
  wrong.context_parallel = 3;
  EXPECT_EQ(report_check(wrong).error().message,
            "--context-parallel 3 does not divide 4 ranks; choose a number from 1 that does");
}

TEST(PlanProgramCommand, LetsARankHaveSeveralPiecesOfALane) {
  ProgramArguments job{
      .strategy = "zero1", .ranks = 4, .rounds = 3, .context_parallel = 2, .context_pieces = 8, .units = 1};
  EXPECT_TRUE(report_check(job));

  const auto slots = [](const ProgramArguments& arguments) {
    return core::memory_of(core::plan_program(program_inputs(arguments).value(), {0}).value()).gradients;
  };
  const auto several = slots(job);
  job.context_pieces = 2;

  EXPECT_EQ(several, 4 * slots(job)) << "each of four pieces has sums of its own";
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

}  // namespace
}  // namespace troupe::apps
