#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/plan/run_plan.hpp"
#include "tests/support/words.hpp"

namespace troupe::apps {
namespace {

TEST(PlanLayout, PrintsThePaddedLayoutAsJson) {
  const Output run = run_plan(
      "layout --policy padded --sizes 5000,5000,5000,5000 --bucket-size 8000 --dp 2 --shared 3 --json");

  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out,
            R"({"elements":20352,"parameters":[{"start":15232,"end":20232,"bucket":2},)"
            R"({"start":10176,"end":15176,"bucket":1},{"start":5120,"end":10120,"bucket":1},)"
            R"({"start":0,"end":5000,"bucket":0}],"buckets":[{"start":0,"end":5120,"unpadded":5000},)"
            R"({"start":5120,"end":15232,"unpadded":10056},{"start":15232,"end":20352,"unpadded":5000}]})"
            "\n");
}

TEST(PlanLayout, PrintsThePlainLayoutAndTheBusBandwidthPadding) {
  EXPECT_EQ(
      run_plan("layout --policy plain --sizes 97,103 --json").out,
      R"({"elements":200,"parameters":[{"start":103,"end":200,"bucket":0},{"start":0,"end":103,"bucket":0}],)"
      R"("buckets":[{"start":0,"end":200,"unpadded":200}]})"
      "\n");
  EXPECT_EQ(run_plan("layout --policy padded --sizes 1000 --dp 2 --high-busbw --json").out,
            R"({"elements":65536,"parameters":[{"start":0,"end":1000,"bucket":0}],)"
            R"("buckets":[{"start":0,"end":65536,"unpadded":1000}]})"
            "\n");
}

TEST(PlanLayout, PrintsTheRowsOfEachRank) {
  EXPECT_EQ(run_plan("layout --policy row_aligned --shapes 16x8,16 --dp 2 --json").out,
            R"({"elements":144,"parameters":[{"offset":0},{"offset":128}],)"
            R"("ranks":[{"local_rows":[9,0]},{"local_rows":[7,16]}]})"
            "\n");
}

TEST(PlanLayout, MatricesOfAWholeParameterLayoutComeFromShapes) {
  const auto json = nlohmann::json::parse(
      run_plan("layout --policy whole_parameter --shapes 128x128,64,128x128 --dp 2 --json").out);

  EXPECT_EQ(json["elements"], 2 * (16384 + 64));
  EXPECT_EQ(json["buckets"][0]["unpadded"], 2 * 16384 + 64);
}

TEST(PlanLayout, ListsEachParameterAndBucketOnALine) {
  EXPECT_EQ(run_plan("layout --policy padded --sizes 97,103 --dp 2").out,
            "parameter          start            end  bucket\n"
            "        0            128            225       0\n"
            "        1              0            103       0\n"
            "\n"
            "   bucket          start            end       unpadded   padding\n"
            "        0              0            256            225        31\n"
            "\n"
            "256 elements\n");
}

struct Refusal {
  const char* arguments;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const Refusal& of) { return out << of.arguments; }
};

class PlanRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(PlanRefusal, SaysWhatToDo) {
  const Output run = run_plan(GetParam().arguments);

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find(GetParam().message), std::string::npos) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    BadInput, PlanRefusal,
    testing::Values(
        Refusal{"layout --policy dense --sizes 5", "--policy: expected plain or padded"},
        Refusal{"layout", "there are no parameters"},
        Refusal{"layout --sizes 5,6 --shapes 5", "--sizes names 2 parameters and --shapes 1"},
        Refusal{"layout --sizes 5 --shapes 2x3", "parameter 0 has 5 elements by --sizes and 6 by --shapes"},
        Refusal{
            "layout --shapes 5y4",
            "the shape \"5y4\": expected a whole number from 0 to 1125899906842624, found \"5y4\"; write"},
        Refusal{"layout --shapes 5x", "the shape \"5x\": expected a whole number from 0 to"},
        Refusal{"layout --shapes 5x-4", "found \"-4\"; write numbers with 'x' between them, as in 5x4"},
        Refusal{"layout --shapes 99999999999x99999999999", "parameter 0 has an extent of 99999999999"},
        Refusal{"layout --sizes 5 --shared 1", "--shared 1 names no parameter"},
        Refusal{"layout --sizes 5 --dp 0", "--dp: expected a whole number from 1 to 1048576, found \"0\""},
        Refusal{"layout --sizes 5 --bucket-size 0", "--bucket-size: expected a whole number from 1"},
        Refusal{"layout --policy row_aligned --sizes 5 --bucket-size 4", "has no buckets"}),
    [](const auto& test) {
      return tests::words_of(test.param.arguments) + "_" + std::to_string(test.index);
    });

}  // namespace
}  // namespace troupe::apps
