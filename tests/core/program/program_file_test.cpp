#include "core/program/program_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/core/program/some_operations.hpp"
#include "tests/core/program/some_programs.hpp"

namespace troupe::core {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

ProgramFile file_of(const SomeJob& job) {
  return file_of(plan_all(inputs_of(job)).value());
}

TEST(ProgramFile, IsTheSameAfterWritingAndReading) {
  for (const auto strategy :
       {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3, Strategy::hsdp, Strategy::hfsdp}) {
    for (const auto numerics : {Numerics::fast, Numerics::ordered}) {
      const int outer = strategy == Strategy::hsdp || strategy == Strategy::hfsdp ? 3 : 1;
      const auto file = file_of(SomeJob{.strategy = strategy,
                                        .ranks = 6,
                                        .outer = outer,
                                        .rounds = 3,
                                        .numerics = numerics,
                                        .elements = 1152});

      const auto again = parse_program_file(to_text(file));

      ASSERT_TRUE(again) << again.error().message;
      EXPECT_EQ(*again, file) << name_of(strategy) << " " << name_of(numerics);
    }
  }
}

TEST(ProgramFile, KeepsWhatOnlySomeProgramsHave) {
  auto inputs = inputs_of(SomeJob{.ranks = 3, .units = 5, .numerics = Numerics::ordered, .elements = 1152});
  inputs.lanes = 8;
  inputs.staging_elements = 100;
  inputs.units[0].residency = Residency::resident;
  inputs.units[1].tensors.push_back({.elements = 96, .trainable = false});
  inputs.units[3] = {.use = UnitUse::forward, .tensors = {{.elements = 96, .trainable = false}}};
  const auto file = file_of(plan_all(inputs).value());

  EXPECT_EQ(parse_program_file(to_text(file)).value(), file);
}

TEST(ProgramFile, SaysThatLanesAreCutOnlyWhereTheyAre) {
  auto inputs = inputs_of(SomeJob{.ranks = 6, .numerics = Numerics::ordered, .elements = 1152});
  inputs.pieces.of_lane = 2;
  inputs.lanes = 5;
  const auto file = file_of(plan_all(inputs).value());

  EXPECT_EQ(parse_program_file(to_text(file)).value(), file);
  EXPECT_THAT(to_text(file), HasSubstr("\"pieces\": 2"));
  EXPECT_THAT(to_text(file_of(SomeJob{})), testing::Not(HasSubstr("pieces")));
  auto json = Json::parse(to_text(file));
  json["programs"][0]["program"]["pieces"] = 4;
  EXPECT_THAT(parse_program_file(json.dump()).error().message,
              HasSubstr("4 pieces of a lane, 1 on each rank, do not fit an axis of 6 ranks"));
}

TEST(ProgramFile, ListsRanksAsRanges) {
  auto inputs = inputs_of(SomeJob{.strategy = Strategy::ddp, .ranks = 4});
  inputs.lanes = 6;  // ranks 0 and 1 have two lanes, the others one
  const auto file = file_of(plan_all(inputs).value());

  ASSERT_EQ(file.parts.size(), 2U);
  EXPECT_EQ(file.parts[0].places, (std::vector<PlaceRange>{{0, 1}}));
  EXPECT_EQ(file.parts[1].places, (std::vector<PlaceRange>{{2, 3}}));
}

/// The message for a file in which one thing is not as it was.
std::string spoilt(const std::function<void(Json&)>& spoil) {
  auto json = Json::parse(to_text(file_of(SomeJob{.rounds = 2})));
  spoil(json);
  const auto file = parse_program_file(json.dump());
  EXPECT_TRUE(file || file.error().code == Errc::corrupt);
  return file ? "" : file.error().message;
}

std::string spoilt_program(const std::function<void(Json&)>& spoil) {
  return spoilt([&](Json& json) { spoil(json["programs"][0]["program"]); });
}

std::string spoilt_entry(const std::function<void(Json&)>& spoil) {
  return spoilt_program([&](Json& json) { spoil(json["body"]["runs"][0]["entries"][0]); });
}

TEST(ProgramFile, NamesTheFieldThatCannotBeRead) {
  const std::string program = "programs[0].program.";
  const std::string entry = program + "body.runs[0].entries[0].";

  EXPECT_EQ(spoilt([](Json&) {}), "");
  EXPECT_THAT(parse_program_file("{").error().message, HasSubstr("are not a JSON object"));
  EXPECT_THAT(parse_program_file("{}").error().message, HasSubstr("expected \"format\""));
  EXPECT_EQ(spoilt([](Json& json) { json["sizes"] = "2"; }), "sizes: expected a list, found \"\"2\"\"");
  EXPECT_EQ(spoilt_program([](Json& json) { json.erase("lanes"); }), program + "lanes is missing");
  EXPECT_EQ(spoilt_program([](Json& json) { json["more"] = 1; }),
            "programs[0].program has 17 fields, 16 are known");
  EXPECT_EQ(spoilt_program([](Json& json) { json["rounds"] = 1.5; }),
            program + "rounds: expected a whole number that fits, found \"1.5\"");
  EXPECT_EQ(spoilt_program([](Json& json) { json["rounds"] = 3000000000U; }),
            program + "rounds: expected a whole number that fits, found \"3000000000\"");
  EXPECT_EQ(spoilt_entry([](Json& json) { json["operation"] = "gossip"; }),
            entry + "operation: expected a name that is known, found \"\"gossip\"\"");
  EXPECT_EQ(spoilt_entry([](Json& json) { json["from"] = "Q"; }),
            entry + "from: expected letters R, P and F, found \"\"Q\"\"");
  EXPECT_EQ(spoilt_entry([](Json& json) { json["ready"] = nullptr; }),
            entry + "ready: expected an object, found \"null\"");
}

TEST(ProgramFile, RefusesNumbersThatNoProgramHas) {
  EXPECT_THAT(spoilt([](Json& json) {
                json["sizes"] = {1 << 20, 2};
              }),
              HasSubstr("a job has 1 to 1048576 ranks"));
  EXPECT_THAT(spoilt([](Json& json) { json["programs"][0]["ranks"][0]["last"] = 2; }),
              HasSubstr("programs[0] is for ranks 0 to 2, but there are 2"));
  EXPECT_THAT(spoilt([](Json& json) { json["programs"] = Json::array(); }), HasSubstr("has no programs"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["rounds"] = 3; }),
              HasSubstr("3 rounds with a body that is done 1 times"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["credits"] = {2}; }), HasSubstr("credits are 2 numbers"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["streams"] = 0; }), HasSubstr("0 streams"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["coordinates"] = {2}; }),
              HasSubstr("coordinate 2 is beyond an axis of 2 ranks"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["units"][0]["count"] = 0; }), HasSubstr("0 units"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["units"][0]["tensors"][0]["class"] = 7; }),
              HasSubstr("is in class 7 of 1"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["body"]["runs"][0]["times"] = 1000; }),
              HasSubstr("but there are 4 units"));
  EXPECT_THAT(spoilt_program([](Json& json) { json["body"]["runs"][0]["entries"] = Json::array(); }),
              HasSubstr("a run of 0 entries is repeated"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["tensor"]["unit"] = -1; }), HasSubstr("is in unit -1"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["stream"] = 5; }), HasSubstr("is on stream 5 of 2"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["operation"] = "broadcast"; }),
              HasSubstr("is not one of a plan's collectives"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["needed"]["unit"] = 4; }), HasSubstr("names unit 4"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["counts"]["runs"][0]["members"] = 0; }),
              HasSubstr("has counts of 0 members"));
}

std::string spoilt_list(const std::function<void(Json&)>& spoil) {
  auto inputs = inputs_of(SomeJob{.units = 2, .rounds = 2});
  inputs.passes = {{Pass::forward, 0, 0, 2},
                   {Pass::forward, 1, 0, 2},
                   {Pass::backward, 0, 0, 2},
                   {Pass::backward, 1, 0, 2}};
  auto json = Json::parse(to_text(file_of(plan_all(inputs).value())));
  spoil(json["programs"][0]["program"]);
  const auto read = parse_program_file(json.dump());
  return read ? "" : read.error().message;
}

TEST(ProgramFile, RefusesListsOfPassesThatNoProgramHas) {
  const auto first_entry = [](Json& json) -> Json& {
    return json["pass_segments"][0]["runs"][0]["entries"][0];
  };
  EXPECT_EQ(spoilt_list([](Json&) {}), "");
  EXPECT_THAT(spoilt_list([](Json& json) { json["passes"][0]["passes"][0]["round"] = 7; }),
              HasSubstr("a pass is in round 7 of 2"));
  EXPECT_THAT(spoilt_list([](Json& json) { json["passes"][0]["times"] = 1'000'000'000; }),
              HasSubstr("are repeated 1000000000 times"));
  EXPECT_THAT(spoilt_list([](Json& json) { json["passes"][0]["passes"][0]["end"] = 1; }),
              HasSubstr("comes next"));
  EXPECT_THAT(spoilt_list([](Json& json) { json.erase("passes"); }), HasSubstr("with a body that is done 0"));
  EXPECT_THAT(spoilt_list([](Json& json) { json["last_round"]["runs"] = json["pass_segments"][0]["runs"]; }),
              HasSubstr("has a body or a last round as well"));
  EXPECT_THAT(spoilt_list([](Json& json) { json["pass_segments"][0]["runs"][0]["round"] = 2; }),
              HasSubstr("an entry is in round 2 of 2"));
  EXPECT_THAT(spoilt_list([](Json& json) { json["pass_segments"][0]["times"] = -1; }),
              HasSubstr("a segment is done -1 times"));
  EXPECT_THAT(spoilt_list([](Json& json) {
                json["pass_segments"][0]["times"] = -1'000'000;
                json["pass_segments"][0]["runs"][0]["times"] = 1'000'000;
              }),
              HasSubstr("a segment is done -1000000 times"));
  EXPECT_THAT(spoilt_list([](Json& json) {
                auto& segment = json["pass_segments"][0];
                auto& entries = segment["runs"][0]["entries"];
                const Json entry = entries[0];
                for (int i = 0; i < 5000; ++i) entries.push_back(entry);
                segment["times"] = 2'147'483'647;
                segment["runs"][0]["times"] = 1'000'000;
                segment["runs"][0]["unit_step"] = 0;
              }),
              HasSubstr("more than 1000000 launches"));
  EXPECT_THAT(spoilt_list([](Json& json) {
                json["passes"][0]["times"] = 200'000;
                json["passes"][0]["round_step"] = 2;
              }),
              HasSubstr("a pass is in round 399998 of 2"));
  EXPECT_THAT(spoilt_list([](Json& json) {
                auto& run = json["epilogue"]["runs"][0];
                run["entries"][0]["tensor"]["kind"] = "verdict";
                run["times"] = 1'000'000;
                run["unit_step"] = 1 << 20;
              }),
              HasSubstr("repeated 1000000 times with units 1048576 apart"));
  for (const int round : {-2, 1}) {
    const auto found = spoilt_list([&](Json& json) {
      json["epilogue"]["runs"][0]["entries"][0]["needed"] = {
          {"phase", "forward"}, {"unit", 0}, {"round", round}};
    });
    EXPECT_THAT(found, HasSubstr("which is not one of the step's points")) << round << " after the last of 2";
  }
  EXPECT_THAT(spoilt_list([&](Json& json) { first_entry(json)["needed"]["round"] = 2147483647; }),
              HasSubstr("which is not one of the step's points"));
  EXPECT_THAT(spoilt_list([&](Json& json) { first_entry(json)["needed"]["phase"] = "weights"; }),
              HasSubstr("which is not one of the step's points"));
  EXPECT_THAT(spoilt_entry([](Json& json) { json["needed"]["round"] = 1; }),
              HasSubstr("which is not one of the step's points"));
}

ProgramFile file_with_operations() {
  auto inputs = inputs_of(SomeJob{.rounds = 2});
  for (int unit = 1; unit < 4; ++unit) {
    inputs.operations.push_back(counts_of_experts(unit));
    inputs.operations.push_back(rows_of_experts(Phase::forward, unit));
  }
  inputs.operations.push_back(operation(CollectiveKind::broadcast, GroupKind::tp, {Phase::backward, 3},
                                        DType::bf16, Counts::table({3, 4, 4})));
  return file_of(plan_all(inputs).value());
}

std::string spoilt_operations(const std::function<void(Json&)>& spoil) {
  auto json = Json::parse(to_text(file_with_operations()));
  spoil(json["programs"][0]["program"]["operations"]);
  const auto read = parse_program_file(json.dump());
  EXPECT_TRUE(read || read.error().code == Errc::corrupt);
  return read ? "" : read.error().message;
}

TEST(ProgramFile, HasTheTrainersOperationsOnlyWhereTheyAreDeclared) {
  const auto file = file_with_operations();

  ASSERT_EQ(file.parts[0].program.operations.size(), 2U);
  EXPECT_EQ(parse_program_file(to_text(file)).value(), file);
  EXPECT_THAT(to_text(file_of(SomeJob{})), testing::Not(HasSubstr("operations")));
}

TEST(ProgramFile, RefusesOperationsThatNoTrainerHas) {
  const auto first = [](Json& json) -> Json& { return json[0]["operations"][0]; };
  const std::string one = "programs[0].program.operations[0].operations[0].";

  EXPECT_EQ(spoilt_operations([](Json&) {}), "");
  EXPECT_EQ(spoilt_operations([&](Json& json) { first(json)["operation"] = "send"; }),
            one + "operation: expected a name that is known, found \"\"send\"\"");
  EXPECT_EQ(spoilt_operations([&](Json& json) { first(json)["counts"]["kind"] = "some"; }),
            one + "counts.kind: expected a name that is known, found \"\"some\"\"");
  EXPECT_EQ(spoilt_operations([&](Json& json) { first(json).erase("dtype"); }), one + "dtype is missing");
  EXPECT_EQ(spoilt_operations([](Json& json) { json[0]["times"] = 0; }),
            "programs[0]: a run of 2 operations is repeated 0 times with units 1 apart");
  EXPECT_EQ(spoilt_operations([](Json& json) { json[0]["operations"] = Json::array(); }),
            "programs[0]: a run of 0 operations is repeated 3 times with units 1 apart");
  EXPECT_EQ(spoilt_operations([](Json& json) { json[0]["times"] = 4; }),
            "programs[0]: all_gather on ep in 'forward of unit 1' names unit 4 and round 0; it belongs to "
            "forward or "
            "backward of 4 units");
  EXPECT_EQ(spoilt_operations([](Json& json) { json[0]["unit_step"] = -1; }),
            "programs[0]: all_gather on ep in 'forward of unit 1' names unit -1 and round 0; it belongs to "
            "forward or "
            "backward of 4 units");
  EXPECT_THAT(spoilt_operations([](Json& json) { json[0]["unit_step"] = 2147483647; }),
              HasSubstr("with units 2147483647 apart"));
  EXPECT_EQ(spoilt_operations([](Json& json) {
              json[0]["times"] = 250'001;
              json[0]["unit_step"] = 0;
            }),
            "programs[0]: more than 1000000 operations of the trainer's own in 2 rounds");
  EXPECT_THAT(spoilt_operations([&](Json& json) { first(json)["point"]["phase"] = "update"; }),
              HasSubstr("it belongs to forward or backward of 4 units"));
  EXPECT_THAT(spoilt_operations([&](Json& json) { first(json)["point"]["round"] = 1; }),
              HasSubstr("names unit 1 and round 1"));
  EXPECT_EQ(
      spoilt_operations([&](Json& json) { first(json)["counts"]["runs"][0]["elements"] = -1; }),
      "programs[0]: all_gather on ep in 'forward of unit 1' has counts of 2 members with -1 elements each");
  EXPECT_EQ(spoilt_operations([&](Json& json) { first(json)["counts"]["runs"] = Json::array(); }),
            "programs[0]: all_gather on ep in 'forward of unit 1' has counts of 0 members");
}

NamedProgramFile named(const std::string& name, std::vector<PlaceRange> places, const SomeJob& job) {
  const auto program = program_of(job);
  return {name, {program.domains[0].sizes, {{std::move(places), program}}}};
}

TEST(ProgramFile, FilesAreJoinedToOneJobOfSharedPrograms) {
  const SomeJob some{.ranks = 4};
  const auto other = SomeJob{.ranks = 4, .elements = 2048};

  const auto job = join_files(std::vector{named("a", {{0, 0}, {2, 2}}, some), named("b", {{1, 1}}, some),
                                          named("c", {{3, 3}}, other)})
                       .value();

  EXPECT_EQ(job.sizes, std::vector<int>{4});
  EXPECT_EQ(job.programs.size(), 2U);
  EXPECT_EQ(job.of_place, (std::vector<int>{0, 0, 0, 1}));
}

TEST(ProgramFile, FilesThatAreNoJobTogetherAreNamed) {
  const SomeJob two{.ranks = 2};
  const auto message = [](const std::vector<NamedProgramFile>& files) {
    const auto job = join_files(files);
    EXPECT_FALSE(job) << "no error";
    return job ? "" : job.error().message;
  };

  EXPECT_EQ(message({named("a", {{0, 0}}, two)}),
            "rank 1 of 2 has no program in these files; give those of all ranks");
  EXPECT_EQ(message({named("a", {{0, 1}}, two), named("b", {{1, 1}}, two)}),
            "rank 1 has a program in a and another in b; give one of them");
  EXPECT_EQ(message({named("a", {{0, 1}}, two), named("b", {{0, 3}}, {.ranks = 4})}),
            "a is from a job on 2 ranks, b from one on 4; give programs of one job");
}

}  // namespace
}  // namespace troupe::core
