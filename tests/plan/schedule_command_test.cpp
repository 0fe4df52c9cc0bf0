#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/troupe/plan/schedule_report.hpp"

namespace troupe::apps {
namespace {

using testing::HasSubstr;

TEST(PlanScheduleCommand, DrawsALinePerStage) {
  const auto text = report_schedule({.stages = 2, .microbatches = 2}).value();

  EXPECT_EQ(text,
            "1f1b, 2 stages of 1 chunk, 2 microbatches: 9.000 ms, 33.33 % bubble (33.33 % in theory)\n"
            "stage 0   keeps 2   F0 F1 .  .  B0--- .  B1---\n"
            "stage 1   keeps 1   .  F0 B0--- F1 B1---\n");
}

TEST(PlanScheduleCommand, PrintsTheTimesAsJson) {
  const auto json =
      nlohmann::json::parse(report_schedule({.kind = "interleaved", .chunks = 2, .json = true}).value());

  EXPECT_EQ(json["stages"].size(), 4U);
  EXPECT_EQ(json["stages"][3].size(), 2U * 2 * 8);
  EXPECT_DOUBLE_EQ(json["bubble_share"], 3.0 / 19);
  EXPECT_DOUBLE_EQ(json["theoretical_bubble_share"], 3.0 / 19);
  EXPECT_EQ(json["total_ms"], 16 * 3 + 3 * 3);
  EXPECT_EQ(json["stages"][1][0]["start_ms"], 1);
  EXPECT_EQ(json["peak_activations"], nlohmann::json({11, 9, 7, 5}));
}

TEST(PlanScheduleCommand, SaysNoTheoryWhereThereIsNone) {
  const auto json =
      nlohmann::json::parse(report_schedule({.stages = 4, .microbatches = 2, .json = true}).value());

  EXPECT_TRUE(json["theoretical_bubble_share"].is_null());
}

TEST(PlanScheduleCommand, ThePageHasEveryPass) {
  const auto page = schedule_page({.kind = "zero_bubble", .stages = 3, .microbatches = 4}).value();

  std::size_t count = 0;
  for (auto at = page.find("<rect"); at != std::string::npos; at = page.find("<rect", at + 1)) ++count;
  EXPECT_EQ(count, 3U * 4 * 3);
  EXPECT_THAT(page, HasSubstr("% bubble"));
  EXPECT_EQ(page.find("http"), std::string::npos) << "it needs nothing else";
}

TEST(PlanScheduleCommand, RefusesWhatCannotBeDrawn) {
  EXPECT_THAT(report_schedule({.backward_ms = 1, .weight_ms = 2}).error().message,
              HasSubstr("--weight-ms is a part of --backward-ms and cannot be more, found 2 of 1"));
  EXPECT_THAT(report_schedule({.html = "/nowhere/page"}).error().message,
              HasSubstr("cannot write the page of --html \"/nowhere/page\""));
  EXPECT_THAT(report_schedule({.stages = 1000, .microbatches = 1000}).error().message,
              HasSubstr("at most 200000 are drawn"));
  EXPECT_THAT(report_schedule({.chunks = 2}).error().message, HasSubstr("use interleaved"));
}

}  // namespace
}  // namespace troupe::apps
