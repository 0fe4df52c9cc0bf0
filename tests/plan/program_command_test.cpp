#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
