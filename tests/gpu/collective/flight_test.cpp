// What a rank's flight record holds, and what a reader makes of one that is not whole.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/flight_check.hpp"
#include "gpu/collective/flight_reading.hpp"
#include "gpu/collective/flight_recorder.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using Record = std::vector<std::byte>;

class FlightRecord : public ::testing::Test {
 protected:
  std::shared_ptr<FlightRecorder> open() {
    return FlightRecorder::open({.path = path_,
                                 .job = "job",
                                 .epoch = core::Epoch{3},
                                 .rank = {1},
                                 .world = {2},
                                 .host_name = "here"})
        .value();
  }
  GroupOptions group(std::shared_ptr<FlightRecorder> recorder) {
    GroupOptions options;
    options.name = "dp";
    options.members = {{0}, {1}};
    options.self = {1};
    options.recorder = std::move(recorder);
    return options;
  }
  Operation all_reduce(std::size_t elements, int step = -1) {
    Operation operation{.kind = OperationKind::all_reduce,
                        .input = {memory_.data(), elements * 4},
                        .output = {memory_.data(), elements * 4}};
    operation.step = core::Step{step};
    operation.unit = 7;
    return operation;
  }
  Record bytes() const {
    std::ifstream file(path_, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
  }
  RecordedRank read() const { return read_flight_record(bytes()).value(); }

  tests::ScratchFolder folder_;
  std::string path_ = folder_.path("record");
  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
};

TEST_F(FlightRecord, HoldsWhatARankDoes) {
  const auto recorder = open();
  const FlightTrack track(group(recorder), 1);
  recorder->enter(FlightPhase::in_step, core::Step{5});
  recorder->wait_begins("the decision of step 5");

  auto* const ended = track.posted(all_reduce(16, 5), 0);
  FlightTrack::launched(ended);
  FlightTrack::ended(ended, {});
  auto* const failed = track.posted(all_reduce(32, 5), 1);
  FlightTrack::launched(failed);
  FlightTrack::ended(failed, core::fail(Errc::peer_lost, "gone"));
  FlightTrack::launched(track.posted(all_reduce(64, 5), 2));
  track.posted(all_reduce(128, 5), 3);

  const auto found = read();
  EXPECT_EQ(found.rank.value, 1);
  EXPECT_EQ(found.world.value, 2);
  EXPECT_EQ(found.epoch.value, 3U);
  EXPECT_EQ(found.pid, ::getpid());
  EXPECT_EQ(found.phase, FlightPhase::in_step);
  EXPECT_EQ(found.phase_step, 5);
  EXPECT_EQ(found.waits_for, "the decision of step 5");
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_EQ(found.groups[0].name, "dp");
  EXPECT_THAT(found.groups[0].members, ::testing::ElementsAre(core::Rank{0}, core::Rank{1}));
  const auto& operations = found.groups[0].operations;
  ASSERT_EQ(operations.size(), 4U);
  const FlightState states[] = {FlightState::ended, FlightState::failed, FlightState::launched,
                                FlightState::posted};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(operations[i].state, states[i]);
    EXPECT_EQ(operations[i].sequence, i);
    EXPECT_EQ(operations[i].elements, std::size_t{16} << i);
    EXPECT_EQ(operations[i].step, 5);
    EXPECT_EQ(operations[i].unit, 7);
    EXPECT_GT(operations[i].posted_ns, 0);
    EXPECT_EQ(operations[i].launched_ns != 0, i < 3);
    EXPECT_EQ(operations[i].ended_ns != 0, i < 2);
  }
  EXPECT_EQ(operations[1].code, Errc::peer_lost);
}

TEST_F(FlightRecord, KeepsTheLastOperationsAndAllUnfinishedOnes) {
  const FlightTrack track(group(open()), 1);
  auto* const open_one = track.posted(all_reduce(1), 0);
  ASSERT_NE(open_one, nullptr);
  constexpr std::uint64_t kCount = 10 * FlightGroup::kEntries;
  for (std::uint64_t i = 1; i < kCount; ++i) FlightTrack::ended(track.posted(all_reduce(1), i), {});

  const auto found = read().groups.at(0);
  EXPECT_EQ(found.posted, kCount);
  EXPECT_EQ(found.operations.size(), FlightGroup::kEntries);
  EXPECT_EQ(found.operations.front().sequence, 0U);
  EXPECT_EQ(found.operations.front().state, FlightState::posted);
  EXPECT_EQ(found.operations.back().sequence, kCount - 1);
  EXPECT_EQ(found.without_entry, 9U) << "those whose place the first one has kept";
}

TEST_F(FlightRecord, OutlivesAProcessThatIsKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto recorder = open();
    const FlightTrack track(group(recorder), 1);
    FlightTrack::launched(track.posted(all_reduce(16, 9), 0));
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  const auto found = read();
  EXPECT_EQ(found.pid, child);
  EXPECT_EQ(found.groups.at(0).operations.at(0).step, 9);
  EXPECT_EQ(found.groups.at(0).operations.at(0).state, FlightState::launched);
}

TEST_F(FlightRecord, TellsWhatIsNoRecordOrNotAll) {
  const FlightTrack track(group(open()), 1);
  track.posted(all_reduce(16), 0);
  const Record whole = bytes();
  const auto error_of = [](const Record& record) {
    const auto found = read_flight_record(record);
    return found ? core::Error{} : found.error();
  };

  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{8}}) {
    EXPECT_EQ(error_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}).message,
              "it is not a flight record");
  }
  EXPECT_THAT(error_of({whole.begin(), whole.end() - 1}).message, ::testing::HasSubstr("it was cut off"));
  auto other = whole;
  other[offsetof(FlightHeader, version)] = std::byte{99};
  EXPECT_EQ(error_of(other).code, Errc::mismatch);
  EXPECT_THAT(error_of(other).message, ::testing::HasSubstr("a flight record of version 99"));
  EXPECT_EQ(error_of(Record(whole.size(), std::byte{'x'})).code, Errc::corrupt);
}

TEST_F(FlightRecord, CountsEntriesThatAreNotWholeAndTrustsNothing) {
  const FlightTrack track(group(open()), 1);
  for (std::uint64_t i = 0; i < 5; ++i) track.posted(all_reduce(16), i);
  const Record whole = bytes();
  auto torn = whole;
  const auto entry_at = [](std::size_t place) {
    return offsetof(FlightFile, groups) + offsetof(FlightGroup, entries) + place * sizeof(FlightEntry);
  };
  torn[entry_at(2) + offsetof(FlightEntry, elements)] ^= std::byte{1};
  torn[entry_at(4)] = static_cast<std::byte>(FlightState::writing);
  const auto found = read_flight_record(torn).value().groups.at(0);
  EXPECT_EQ(found.torn, 2);
  EXPECT_EQ(found.operations.size(), 3U);

  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    auto noise = whole;
    // Most of the file is empty: what counts is where there is something.
    for (int i = 0; i < 20; ++i) {
      const std::size_t at = round % 2 == 0 ? random() % sizeof(FlightHeader)
                                            : offsetof(FlightFile, groups) + random() % sizeof(FlightGroup);
      noise[at] = static_cast<std::byte>(random());
    }
    const auto read = read_flight_record(noise);
    EXPECT_LE(read ? read->groups.size() : 0, FlightFile::kGroups);
  }
}

/// No lock and no system call: what it costs is printed, and a bound that only a call could exceed is held.
TEST_F(FlightRecord, CostsLittle) {
  const FlightTrack track(group(open()), 1);
  const auto operation = all_reduce(16);
  constexpr std::uint64_t kCount = 200'000;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto began = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < kCount; ++i) {
      auto* const entry = track.posted(operation, i);
      FlightTrack::launched(entry);
      FlightTrack::ended(entry, {});
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    best = std::min(best, took.count() / kCount);
  }
  fmt::print("{:.0f} ns for an operation that is posted, launched and ended\n", best);
  EXPECT_LT(best, 5000);
}

}  // namespace
}  // namespace troupe::gpu
