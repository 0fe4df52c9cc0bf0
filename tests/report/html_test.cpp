#include "apps/report/html.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/report/run_fixture.hpp"

namespace troupe::apps {
namespace {

using testing::step_at;

RunRecord record_of(std::int64_t steps) {
  RunRecord record{.description = testing::description(), .steps = {}, .events = {}, .samples = {}};
  for (std::int64_t step = 0; step < steps; ++step) record.steps.push_back(step_at(step));
  return record;
}

/// The data of a page, as a browser would read it.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script id=\"run-data\" type=\"application/json\">";
  const auto from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(Report, HoldsEveryStepColumnByColumn) {
  RunRecord record = record_of(3);
  record.steps[1].evaluation_loss = 1.5;
  record.steps[2].target_tokens = 61;

  const auto data = data_of(render_html(record));

  EXPECT_EQ(data["steps"]["step"], nlohmann::json({0, 1, 2}));
  EXPECT_EQ(data["steps"]["loss"], nlohmann::json({5.0, 2.5, 5.0 / 3}));
  EXPECT_EQ(data["steps"]["evaluation_loss"], nlohmann::json({nullptr, 1.5, nullptr}));
  EXPECT_EQ(data["steps"]["target_tokens"], nlohmann::json({nullptr, nullptr, 61}));
  EXPECT_EQ(data["run"]["configuration"][0], nlohmann::json({"strategy", "zero1"}));
}

TEST(Report, HoldsTheLoadOfExperts) {
  RunRecord record = record_of(3);
  record.expert_loads = {{.step = 2, .layers = {{.layer = 1, .chosen = {4, 6}, .dropped = {0, 1}}}}};

  const auto data = data_of(render_html(record));

  EXPECT_EQ(data["expert_loads"][0]["step"], 2);
  EXPECT_EQ(data["expert_loads"][0]["layers"][0],
            nlohmann::json({{"layer", 1}, {"chosen", {4, 6}}, {"dropped", {0, 1}}}));
}

TEST(Report, HoldsWhatWasSentAlongEachAxis) {
  RunRecord record = record_of(3);
  EXPECT_EQ(data_of(render_html(record))["traffic"], nullptr);
  record.traffic = {.step = 2, .axes = {{"data", 3, 4096}}};

  const auto data = data_of(render_html(record));

  EXPECT_EQ(data["traffic"]["step"], 2);
  EXPECT_EQ(data["traffic"]["axes"][0], nlohmann::json({{"axis", "data"}, {"launches", 3}, {"bytes", 4096}}));
}

/// A name that may not wrap runs into the next column: pages are read at 390 pixels, too.
TEST(Report, WrapsLongNamesOfSettings) {
  const std::string page = render_html(record_of(1));

  for (const char* part : {"dt", "dd"}) {
    std::smatch rule;
    ASSERT_TRUE(std::regex_search(page, rule, std::regex("\n" + std::string(part) + " \\{[^}]*\\}")));
    EXPECT_EQ(rule.str().find("nowrap"), std::string::npos) << rule.str();
  }
  EXPECT_THAT(page, ::testing::HasSubstr("@media (max-width: 600px)"));
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string page = render_html(record_of(3));

  // The namespace of SVG is a name, which no browser fetches.
  const std::string text = std::regex_replace(page, std::regex("http://www.w3.org/2000/svg"), "");
  for (const char* fetch : {"http:", "https:", "src=", "<link", "@import", "url(h", "fetch("}) {
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(fetch)));
  }
  for (const char* mark : {"/*style*/", "/*plots*/", "/*script*/"}) {
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(mark)));
  }
}

TEST(Report, IsNotBrokenByWhatAModelMayWrite) {
  RunRecord record = record_of(1);
  const std::string text = "</script><!-- \"data\" /*script*/ & \\ \n";
  record.samples = {{.step = 0, .prompt = "", .text = text}};

  const std::string page = render_html(record);

  EXPECT_EQ(data_of(page)["samples"][0]["text"], text);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
}

TEST(Report, CanBeWrittenOfARunThatDidNothing) {
  EXPECT_EQ(data_of(render_html(RunRecord{}))["steps"], nlohmann::json::object());
}

TEST(Report, IsWrittenFromARecordOnDisk) {
  testing::TemporaryFolder folder;
  {
    auto writer = RunWriter::open(folder / "run.jsonl", testing::description());
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write(step_at(0)));
  }

  ASSERT_TRUE(write_report(folder / "run.jsonl", folder / "report.html"));

  EXPECT_EQ(data_of(testing::read_text(folder / "report.html"))["steps"]["loss"], nlohmann::json({5.0}));
  EXPECT_EQ(write_report(folder / "none.jsonl", folder / "report.html").error().code, core::Errc::not_found);
  EXPECT_EQ(write_report(folder / "run.jsonl", folder / "none/report.html").error().code, core::Errc::io);
}

}  // namespace
}  // namespace troupe::apps
