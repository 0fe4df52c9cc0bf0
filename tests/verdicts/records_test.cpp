// Folders in which not all is as it should be.
#include "apps/troupe/diagnose/records.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "gpu/collective/flight_recorder.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class FlightFolder : public testing::Test {
 protected:
  std::string file(int epoch, int rank) const {
    return record_path(folder_.path("rank"), static_cast<std::uint64_t>(epoch), rank);
  }
  void record(int epoch, int rank) {
    const auto made = gpu::FlightRecorder::open({.path = file(epoch, rank),
                                                 .job = "job",
                                                 .epoch = core::Epoch{static_cast<std::uint64_t>(epoch)},
                                                 .rank = {rank},
                                                 .world = {5}});
    ASSERT_TRUE(made.has_value()) << made.error().message;
  }
  tests::CommandResult diagnose(const std::string& place) {
    return tests::run_command({TROUPE_BINARY, "diagnose", place}, std::chrono::seconds(20));
  }

  tests::ScratchFolder folder_;
};

TEST_F(FlightFolder, TellsWhatDoesNotCountAndReadsTheRest) {
  for (const int rank : {0, 1, 2, 3}) record(2, rank);
  record(1, 0);
  fs::resize_file(file(2, 1), 1000);
  std::fstream(file(2, 3), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(offsetof(gpu::FlightHeader, version))
      .put(7);
  std::ofstream(folder_.path("processes.2.json")) << "{\"epoch\": 2, \"ranks\": [";
  std::ofstream(folder_.path("notes.txt")) << "of nobody's concern";
  fs::create_symlink(folder_.path("nowhere"), file(2, 4));

  const auto found = find_records({folder_.path()});

  ASSERT_EQ(found.evidence.ranks.size(), 2U);
  EXPECT_EQ(found.evidence.ranks[0].record.rank.value, 0);
  EXPECT_EQ(found.evidence.ranks[1].record.rank.value, 2);
  for (const std::string text : {"ranks 1, 3 and 4 of 5 have no record here", "epoch 1 of this job"})
    EXPECT_THAT(found.problems, Contains(HasSubstr(text)));
  EXPECT_THAT(found.problems, Contains(AllOf(HasSubstr(file(2, 3)), HasSubstr("version 7"))));
  EXPECT_THAT(found.problems, Contains(AllOf(HasSubstr(file(2, 1)), HasSubstr("cut off"))));
  EXPECT_THAT(found.problems, Contains(AllOf(HasSubstr(file(2, 4)), HasSubstr("has not made it"))));
  EXPECT_THAT(found.problems, Contains(HasSubstr("processes.2.json")));
}

TEST_F(FlightFolder, WithoutARecordIsSaidSo) {
  ASSERT_EQ(::mkfifo(folder_.path("rank.1.0").c_str(), 0600), 0);
  for (const auto& place :
       {folder_.path(), folder_.path("nowhere"), std::string("/dev/null"), std::string()}) {
    const auto said = diagnose(place);
    EXPECT_EQ(said.exit_code, 3) << said.output;
    EXPECT_THAT(said.output, HasSubstr("there is no flight record"));
  }
}

TEST_F(FlightFolder, IsFoundByTheBeginningOfItsPathsToo) {
  record(1, 0);
  record(1, 4);

  const auto said = diagnose(folder_.path("rank"));

  EXPECT_EQ(said.exit_code, 0) << said.output;
  EXPECT_THAT(said.output, HasSubstr("note: ranks 1, 2 and 3 of 5 have no record here"));
}

}  // namespace
}  // namespace troupe::apps
