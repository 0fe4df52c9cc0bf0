#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/plan/run_plan.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

/// Programs as files, one of which a test may spoil.
class PlanCheckFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

  /// Gives a rank operations of its trainer's own, of unit 1 and the one after it.
  void declare(const std::string& rank, const Json& operations) const {
    std::ifstream in(path(rank));
    auto json = Json::parse(in);
    json["programs"][0]["program"]["operations"] =
        Json::array({{{"times", 2}, {"unit_step", 1}, {"operations", operations}}});
    write(rank, json.dump());
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream file(path(name));
    file << text;
  }

  /// A file for each of two ranks.
  void write_ranks(const std::string& job) const {
    for (const std::string rank : {"0", "1"}) {
      const auto run = run_plan("program " + job + " --ranks 2 --rank " + rank + " --output " + path(rank));
      EXPECT_EQ(run.exit_code, 0) << run.err;
    }
  }
  Output check_ranks() const { return run_plan("check " + path("0") + " " + path("1")); }

  /// Changes the entries of the last round of a rank, which are written one by one.
  void change(const std::string& rank, const std::function<void(Json&)>& edit) const {
    std::ifstream in(path(rank));
    auto json = Json::parse(in);
    Json entries = Json::array();
    auto& runs = json["programs"][0]["program"]["last_round"]["runs"];
    for (const auto& run : runs) {
      for (int i = 0; i < run["times"].get<int>(); ++i) {
        for (auto entry : run["entries"]) {
          const int units = i * run["unit_step"].get<int>();
          entry["tensor"]["unit"] = entry["tensor"]["unit"].get<int>() + units;
          for (auto* point : {&entry["ready"], &entry["needed"]}) shift(*point, units);
          for (const char* credit : {"takes", "gives"}) {
            if (!entry[credit].is_null()) shift(entry[credit]["point"], units);
          }
          entries.push_back(entry);
        }
      }
    }
    edit(entries);
    runs = Json::array({{{"times", 1}, {"unit_step", 0}, {"entries", entries}}});
    write(rank, json.dump());
  }

 private:
  static void shift(Json& point, int units) {
    const auto phase = point["phase"].get<std::string>();
    if (phase == "forward" || phase == "backward") point["unit"] = point["unit"].get<int>() + units;
  }

  tests::ScratchFolder folder_;
};

TEST_F(PlanCheckFiles, ReadsBackWhatPlanProgramWrote) {
  const auto written =
      run_plan("program --strategy hsdp --ranks 6 --outer 3 --rounds 3 --output " + path("all"));
  const auto checked = run_plan("check " + path("all"));

  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("programs of 6 ranks are in"));
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(checked.out, "6 ranks run 1 programs; 1 ranks that stand for all of them pass each other\n");
}

TEST_F(PlanCheckFiles, TakesOneFileForEachRank) {
  write_ranks("--strategy zero3");

  const auto checked = check_ranks();

  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(checked.out, "2 ranks run 1 programs; 1 ranks that stand for all of them pass each other\n");
}

// Covers beyond-10.
TEST_F(PlanCheckFiles, RefusesASwappedEntryByName) {
  write_ranks("--strategy zero2 --units 3");
  change("1", [](Json& entries) { std::swap(entries[0]["tensor"], entries[1]["tensor"]); });

  const auto checked = check_ranks();

  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_EQ(checked.out, "");
  EXPECT_EQ(
      checked.err,
      "troupe plan check: the rank at (0)'s entry 0, all_to_all of gradients 2.0 on dp_cp on stream 0 meets "
      "the rank at (1)'s entry 0, all_to_all of gradients 1.0 on dp_cp on stream 0; they differ in tensor: "
      "gradients 2.0 and gradients 1.0; one of them has changed places with the rank at (1)'s entry 1, "
      "all_to_all of gradients 2.0 on dp_cp on stream 0\n");
}

Json operation_of_experts(const std::string& operation, const std::string& dtype, const std::string& counts,
                          int elements) {
  return {{"operation", operation},
          {"group", "ep"},
          {"dtype", dtype},
          {"counts", {{"kind", counts}, {"runs", {{{"elements", elements}, {"members", 2}}}}}},
          {"point", {{"phase", "forward"}, {"unit", 1}}}};
}

// Covers beyond-11.
TEST_F(PlanCheckFiles, PrintsAndChecksTheOperationsOfTrainers) {
  const auto counts = operation_of_experts("all_gather", "i64", "even", 8);
  const auto rows = operation_of_experts("all_to_all", "u8", "bounded", 4096);
  write_ranks("--strategy zero3 --units 3");
  declare("0", {counts, rows});
  declare("1", {counts, rows});

  const auto alike = check_ranks();
  const auto as_json = run_plan("check --json " + path("0") + " " + path("1"));
  declare("1", Json::array({counts}));
  const auto missing = check_ranks();
  declare("1", {rows, counts});
  const auto swapped = check_ranks();

  EXPECT_EQ(alike.exit_code, 0) << alike.err;
  EXPECT_EQ(alike.out,
            "2 ranks run 1 programs; 1 ranks that stand for all of them pass each other\n"
            "the trainer's own, in each round:\n x2 unit+1:\n"
            "  all_gather on ep in 'forward of unit 1' dtype=i64 counts=even 2x8\n"
            "  all_to_all on ep in 'forward of unit 1' dtype=u8 counts=bounded at most 2x4096\n");
  EXPECT_EQ(Json::parse(as_json.out)["operations"][0].size(), 4U) << as_json.out;
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err,
              HasSubstr("the rank at (0)'s operation 1, all_to_all on ep in 'forward of unit 1' of "
                        "round 0 meets the rank at (1)'s operation 1, all_gather on ep"));
  EXPECT_EQ(swapped.exit_code, 1);
  EXPECT_THAT(swapped.err,
              HasSubstr("the rank at (1): PR-5: all_to_all on ep in 'forward of unit 1' has bounded "
                        "counts, at most 2x4096"));
}

TEST_F(PlanCheckFiles, RefusesADifferingLayoutByName) {
  write_ranks("--strategy zero3");
  run_plan("program --strategy zero3 --ranks 2 --rank 1 --unit-elements 1000000 --output " + path("1"));

  const auto checked = check_ranks();

  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_THAT(checked.err,
              HasSubstr("the rank at (1)'s entry 0, all_gather of parameters 0.0 on dp_cp on stream 0; "
                        "they differ in elements: 1048576 and 1000064"));
}

// Covers beyond-10.
TEST_F(PlanCheckFiles, RefusesACircleByName) {
  write_ranks("--strategy zero1 --units 2");
  for (const std::string rank : {"0", "1"}) {
    change(rank, [&](Json& entries) {
      entries[1]["group"] = "dp";
      for (auto& entry : entries) entry["ready"] = {{"phase", "round_end"}, {"unit", 0}};
      if (rank == "1") std::swap(entries[0], entries[1]);
    });
  }

  const auto checked = check_ranks();

  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_THAT(checked.err,
              HasSubstr("a circle of 4 waits: the rank at (0)'s entry 0, all_to_all of gradients 1.0 on "
                        "dp_cp on stream 0 waits for the rank at (1)"));
}

TEST_F(PlanCheckFiles, RefusesATrainerThatWaitsForItselfByName) {
  write_ranks("--strategy zero3 --units 3");
  for (const std::string rank : {"0", "1"}) {
    change(rank, [](Json& entries) { entries[2]["ready"] = {{"phase", "forward"}, {"unit", 2}}; });
  }

  const auto checked = check_ranks();

  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_THAT(checked.err,
              HasSubstr("a circle of 2 waits: the rank at (0)'s trainer, before 'forward of unit 2'"));
}

TEST_F(PlanCheckFiles, UnreadableFilesEndWithTwoAndSayWhy) {
  write_ranks("--strategy zero3");
  write("empty", "");
  write("other", R"({"format": "another"})");
  write("cut", R"({"format": "troupe programs 2", "sizes": [2]})");

  const auto message = [&](const std::string& files) {
    const auto checked = run_plan("check " + files);
    EXPECT_EQ(checked.exit_code, 2) << files;
    return checked.err;
  };
  EXPECT_THAT(message(path("empty")), HasSubstr("0 bytes are not a JSON object"));
  EXPECT_THAT(message(path("other")), HasSubstr("expected \"format\": \"troupe programs 2\""));
  EXPECT_THAT(message(path("cut")), HasSubstr("programs is missing"));
  EXPECT_THAT(message(path("none")), HasSubstr("FILE"));
  EXPECT_THAT(message(path("0") + " --units 3"), HasSubstr("--units excludes FILE"));
}

TEST_F(PlanCheckFiles, RanksWithoutAProgramAreNamed) {
  write_ranks("--strategy zero3");

  const auto checked = run_plan("check " + path("0"));

  EXPECT_EQ(checked.exit_code, 2);
  EXPECT_EQ(checked.err,
            "troupe plan check: rank 1 of 2 has no program in these files; give those of all ranks\n");
}

}  // namespace
}  // namespace troupe::apps
