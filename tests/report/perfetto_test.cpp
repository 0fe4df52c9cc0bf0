#include "apps/report/perfetto.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/report/run_fixture.hpp"

namespace troupe::apps {
namespace {

using core::TraceEvent;
using nlohmann::json;
using std::chrono::nanoseconds;

TraceEvent span(std::string track, std::string name, int begin, int end, std::uint64_t flow = 0) {
  return {.kind = TraceEvent::Kind::span,
          .track = std::move(track),
          .name = std::move(name),
          .begin = nanoseconds(begin),
          .end = nanoseconds(end),
          .value = 0,
          .flow = flow};
}

std::vector<json> events_of(const std::vector<RankTrace>& ranks, const std::string& phases) {
  const json trace = json::parse(perfetto_json(ranks));
  std::vector<json> chosen;
  for (const json& event : trace.at("traceEvents")) {
    if (phases.find(event.at("ph").get<std::string>()) != std::string::npos) chosen.push_back(event);
  }
  return chosen;
}

std::int64_t nanoseconds_of(const json& time) {
  return std::llround(time.get<double>() * 1000);
}

/// What the Trace Event Format asks of every event, and what its viewers do.
void expect_valid(const std::vector<RankTrace>& ranks) {
  const json trace = json::parse(perfetto_json(ranks));
  std::set<std::pair<int, int>> named;
  std::map<std::pair<int, int>, std::vector<std::int64_t>> open;
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> slices;
  std::map<int, std::vector<json>> flows;
  for (const json& event : trace.at("traceEvents")) {
    const auto phase = event.at("ph").get<std::string>();
    const std::pair thread(event.at("pid").get<int>(), event.at("tid").get<int>());
    ASSERT_TRUE(event.at("name").is_string());
    if (phase == "M") {
      ASSERT_TRUE(event.at("args").is_object());
      if (event["name"] == "thread_name") {
        ASSERT_TRUE(named.insert(thread).second);
      }
      continue;
    }
    ASSERT_GE(event.at("ts").get<double>(), 0);
    if (phase == "C") {
      ASSERT_TRUE(event.at("args").at("value").is_number() || event["args"]["value"].is_null());
      continue;
    }
    ASSERT_TRUE(named.contains(thread)) << event;
    if (phase == "X") {
      const auto begin = nanoseconds_of(event["ts"]);
      const auto end = begin + nanoseconds_of(event.at("dur"));
      ASSERT_GE(end, begin);
      auto& outer = open[thread];
      while (!outer.empty() && outer.back() <= begin) outer.pop_back();
      ASSERT_TRUE(outer.empty() || end <= outer.back()) << "not nested: " << event;
      outer.push_back(end);
      slices[thread].emplace_back(begin, end);
    } else if (phase == "i") {
      ASSERT_EQ(event.at("s"), "t");
    } else {
      ASSERT_THAT(phase, ::testing::AnyOf("s", "t", "f"));
      flows[event.at("id").get<int>()].push_back(event);
    }
  }
  for (const auto& [id, arrow] : flows) {
    ASSERT_GE(arrow.size(), 2u);
    for (std::size_t i = 0; i < arrow.size(); ++i) {
      ASSERT_EQ(arrow[i]["ph"], i == 0 ? "s" : i + 1 == arrow.size() ? "f" : "t");
      ASSERT_EQ(arrow[i].at("cat"), arrow[0].at("cat"));
      const auto at = nanoseconds_of(arrow[i]["ts"]);
      ASSERT_TRUE(i == 0 || at >= nanoseconds_of(arrow[i - 1]["ts"]));
      const auto& around = slices[{arrow[i]["pid"].get<int>(), arrow[i]["tid"].get<int>()}];
      ASSERT_TRUE(std::any_of(around.begin(), around.end(),
                              [&](const auto& s) { return s.first <= at && at <= s.second; }));
    }
  }
}

TEST(Perfetto, MakesRanksProcessesAndTracksThreads) {
  const std::vector<RankTrace> ranks = {{.rank = {0}, .events = {span("trainer", "forward", 1000, 2500)}},
                                        {.rank = {1}, .events = {span("trainer", "forward", 1500, 1501)}}};

  const auto slices = events_of(ranks, "X");
  const auto names = events_of(ranks, "M");

  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0]["ts"], 0.0);
  EXPECT_EQ(slices[0]["dur"], 1.5);
  EXPECT_EQ(slices[1]["ts"], 0.5);
  EXPECT_EQ(slices[1]["dur"], 0.001);
  EXPECT_NE(slices[0]["pid"], slices[1]["pid"]);
  EXPECT_THAT(names, ::testing::Contains(::testing::Truly([](const json& event) {
                return event["name"] == "process_name" && event["args"]["name"] == "rank 1";
              })));
  expect_valid(ranks);
}

TEST(Perfetto, DrawsAFlowThroughItsSpansByTime) {
  const std::vector<RankTrace> ranks = {
      {.rank = {0},
       .events = {span("communication", "reduce", 30, 60, 7), span("bucket", "count", 20, 25, 7),
                  span("trainer", "gradient", 10, 20, 7), span("optimizer", "update", 70, 90, 7)}}};

  const auto arrows = events_of(ranks, "stf");

  ASSERT_EQ(arrows.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(nanoseconds_of(arrows[i]["ts"]), (std::vector{0, 10, 20, 60}[i]));
  expect_valid(ranks);
}

TEST(Perfetto, DoesNotJoinFlowsOfDifferentRanks) {
  const std::vector<TraceEvent> events = {span("a", "x", 0, 5, 3), span("b", "y", 6, 9, 3)};
  const std::vector<RankTrace> ranks = {{.rank = {0}, .events = events}, {.rank = {1}, .events = events}};

  const auto arrows = events_of(ranks, "stf");

  ASSERT_EQ(arrows.size(), 4u);
  EXPECT_EQ(arrows[0]["id"], arrows[1]["id"]);
  EXPECT_NE(arrows[0]["id"], arrows[2]["id"]);
  expect_valid(ranks);
}

TEST(Perfetto, LaysSpansThatOverlapOnThreadsOfTheirOwn) {
  const std::vector<RankTrace> ranks = {
      {.rank = {0},
       .events = {span("communication", "a", 0, 10), span("communication", "b", 5, 15),
                  span("communication", "inside a", 2, 4), span("communication", "c", 10, 20)}}};

  const auto slices = events_of(ranks, "X");

  std::map<std::string, json> thread;
  for (const json& slice : slices) thread[slice["name"]] = slice["tid"];
  EXPECT_EQ(thread["a"], thread["inside a"]);
  EXPECT_EQ(thread["a"], thread["c"]);
  EXPECT_NE(thread["a"], thread["b"]);
  expect_valid(ranks);
}

TEST(Perfetto, ShowsInstantsAndCounters) {
  const std::vector<RankTrace> ranks = {{.rank = {2},
                                         .events = {{.kind = TraceEvent::Kind::instant,
                                                     .track = "trainer",
                                                     .name = "commit \"7\"",
                                                     .begin = nanoseconds(5),
                                                     .end = {},
                                                     .value = 0,
                                                     .flow = 0},
                                                    {.kind = TraceEvent::Kind::counter,
                                                     .track = "mail",
                                                     .name = "waiting",
                                                     .begin = nanoseconds(9),
                                                     .end = {},
                                                     .value = 2.5,
                                                     .flow = 0}}}};

  EXPECT_EQ(events_of(ranks, "i").at(0)["name"], "commit \"7\"");
  EXPECT_EQ(events_of(ranks, "C").at(0)["name"], "mail: waiting");
  EXPECT_EQ(events_of(ranks, "C").at(0)["args"]["value"], 2.5);
  EXPECT_EQ(nanoseconds_of(events_of(ranks, "C").at(0)["ts"]), 4);
  expect_valid(ranks);
}

TEST(Perfetto, IsAnEmptyTraceOfNothing) {
  expect_valid({});
}

RC_GTEST_PROP(Perfetto, IsValidForEveryListOfEvents, ()) {
  const auto count = *rc::gen::inRange(0, 40);
  std::vector<RankTrace> ranks = {{.rank = {0}, .events = {}}, {.rank = {1}, .events = {}}};
  for (int i = 0; i < count; ++i) {
    const int begin = *rc::gen::inRange(0, 60);
    TraceEvent event =
        span("track " + std::to_string(*rc::gen::inRange(0, 3)), "span " + std::to_string(i), begin,
             begin + *rc::gen::inRange(0, 30), static_cast<std::uint64_t>(*rc::gen::inRange(0, 4)));
    event.kind = static_cast<TraceEvent::Kind>(*rc::gen::inRange(0, 3));
    ranks[static_cast<std::size_t>(*rc::gen::inRange(0, 2))].events.push_back(event);
  }

  expect_valid(ranks);

  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(Perfetto, MergesThePartsThatRanksWrote) {
  testing::TemporaryFolder folder;
  std::vector<RankTrace> ranks = {
      {.rank = {0}, .events = {span("a", "x", 5, 9, 1), span("b", "y", 9, 10, 1)}}};
  for (int rank = 1; rank <= 10; ++rank)
    ranks.push_back({.rank = {rank}, .events = {span("a", "x", 6, 9 + rank)}});
  for (const RankTrace& trace : ranks) ASSERT_TRUE(write_trace_part(folder / "parts", trace));

  ASSERT_TRUE(merge_trace_parts(folder / "parts", {11}, folder / "trace.json"));

  EXPECT_EQ(testing::read_text(folder / "trace.json"), perfetto_json(ranks));
}

TEST(Perfetto, MergesThePartsThatAreInItsFolder) {
  testing::TemporaryFolder folder;
  const RankTrace here{.rank = {1}, .events = {span("a", "x", 5, 9)}};
  ASSERT_TRUE(write_trace_part(folder / "parts", here));

  ASSERT_TRUE(merge_trace_parts(folder / "parts", {4}, folder / "trace.json"));

  EXPECT_EQ(testing::read_text(folder / "trace.json"), perfetto_json({here}));
}

TEST(Perfetto, OmitsAndRemovesPartsOfAnEarlierLargerJob) {
  testing::TemporaryFolder folder;
  for (int rank = 0; rank < 3; ++rank) {
    const RankTrace part{.rank = {rank}, .events = {span("a", "earlier", 5, 9)}};
    ASSERT_TRUE(write_trace_part(folder / "parts", part));
  }
  const RankTrace own{.rank = {0}, .events = {span("a", "own", 5, 9)}};
  ASSERT_TRUE(write_trace_part(folder / "parts", own));

  ASSERT_TRUE(merge_trace_parts(folder / "parts", {1}, folder / "trace.json"));

  EXPECT_EQ(testing::read_text(folder / "trace.json"), perfetto_json({own}));
  EXPECT_TRUE(std::filesystem::exists(folder / "parts/rank-0.trace-part"));
  EXPECT_FALSE(std::filesystem::exists(folder / "parts/rank-1.trace-part"));
  EXPECT_FALSE(std::filesystem::exists(folder / "parts/rank-2.trace-part"));
}

TEST(Perfetto, RefusesPartsThatAreMissingOrTorn) {
  testing::TemporaryFolder folder;
  const auto merge = [&](const std::filesystem::path& parts, int ranks) {
    return merge_trace_parts(parts, {ranks}, folder / "trace.json").error();
  };
  EXPECT_EQ(merge(folder.path(), 1).code, core::Errc::not_found);
  EXPECT_EQ(merge(folder / "none", 1).code, core::Errc::not_found);

  std::ofstream(folder / "rank-0.trace-part") << "{\"rank\":0,";

  EXPECT_EQ(merge(folder.path(), 1).code, core::Errc::corrupt);
}

}  // namespace
}  // namespace troupe::apps
