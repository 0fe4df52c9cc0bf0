#include "gpu/order/access_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "actors/world/random.hpp"

namespace troupe::gpu {
namespace {

constexpr LineId kUpdate = 1, kCommunication = 2;

/// Lines by hand, over 64 bytes.
class AccessLogTest : public testing::Test {
 protected:
  AccessLogTest() { log_.add(view(0, memory_.size())); }

  BufferView view(std::size_t first, std::size_t bytes) { return {memory_.data() + first, bytes}; }
  AccessLog::Task task(LineId line, std::string label) {
    auto& clock = clocks_[line];
    const Moment moment{line, clock.tick_of(line) + 1};
    clock.advance(moment);
    return {
        moment,
        {labels_.emplace_back(std::move(label)), line == kUpdate ? "stream update" : "stream communication"}};
  }
  std::vector<OrderConflict> reading(LineId line, std::string label, std::size_t first, std::size_t bytes) {
    std::vector<OrderConflict> found;
    const auto reader = task(line, std::move(label));
    log_.read(view(first, bytes), reader, clocks_[line], found);
    return found;
  }
  std::vector<OrderConflict> writing(LineId line, std::string label, std::size_t first, std::size_t bytes) {
    std::vector<OrderConflict> found;
    const auto writer = task(line, std::move(label));
    log_.write(view(first, bytes), writer, clocks_[line], found);
    return found;
  }
  void let_wait(LineId line, LineId other) { clocks_[line].join(clocks_[other]); }

  std::array<std::byte, 64> memory_{};
  std::array<OrderClock, 4> clocks_;
  std::deque<std::string> labels_;
  AccessLog log_;
};

TEST_F(AccessLogTest, FindsNothingBetweenReaders) {
  EXPECT_TRUE(reading(kUpdate, "a", 0, 64).empty());
  EXPECT_TRUE(reading(kCommunication, "b", 0, 64).empty());
}

TEST_F(AccessLogTest, FindsNothingWhereOneLineAwaitedTheOther) {
  EXPECT_TRUE(writing(kUpdate, "a", 0, 64).empty());
  let_wait(kCommunication, kUpdate);
  EXPECT_TRUE(reading(kCommunication, "b", 0, 64).empty());
  EXPECT_TRUE(writing(kCommunication, "c", 0, 64).empty());
}

TEST_F(AccessLogTest, NamesAReaderThatDidNotAwaitTheWriter) {
  EXPECT_TRUE(writing(kUpdate, "tree_sum", 0, 32).empty());
  const auto found = reading(kCommunication, "all_gather", 16, 32);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, 16u);
  EXPECT_EQ(found[0].bytes, 16u);
  EXPECT_EQ(
      found[0].sentence(),
      "'all_gather' on stream communication reads bytes 16 to 32 of 64 that 'tree_sum' on stream update "
      "may not have written yet, and nothing orders the two: record an event on stream update after it, "
      "and let stream communication wait for it before all_gather");
}

TEST_F(AccessLogTest, NamesAWriterThatAwaitedNoReader) {
  EXPECT_TRUE(reading(kCommunication, "b", 0, 8).empty());
  EXPECT_TRUE(reading(3, "c", 0, 8).empty());
  let_wait(kUpdate, kCommunication);

  const auto found = writing(kUpdate, "a", 0, 64);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].earlier.label, "c");
  EXPECT_FALSE(found[0].earlier_writes);
}

TEST_F(AccessLogTest, FindsAReaderBehindItsLinesLaterReader) {
  EXPECT_TRUE(reading(kCommunication, "b", 0, 64).empty());
  let_wait(kUpdate, kCommunication);
  EXPECT_TRUE(reading(kCommunication, "later", 0, 64).empty());

  const auto found = writing(kUpdate, "a", 0, 64);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].earlier.label, "later");
}

TEST_F(AccessLogTest, FindsAWriterThatComesLaterInAnotherLine) {
  EXPECT_TRUE(writing(kUpdate, "a", 0, 64).empty());
  EXPECT_EQ(writing(kCommunication, "b", 63, 1).size(), 1u);
}

TEST_F(AccessLogTest, IgnoresMemoryThatItWasNotToldOf) {
  std::array<std::byte, 8> other{};
  std::vector<OrderConflict> found;
  log_.write({other.data(), other.size()}, task(kUpdate, "a"), clocks_[kUpdate], found);
  log_.write({other.data(), other.size()}, task(kCommunication, "b"), clocks_[kCommunication], found);
  EXPECT_TRUE(found.empty());
}

TEST_F(AccessLogTest, FindsMemoryFreedWhileATaskMayTouchIt) {
  EXPECT_TRUE(reading(kCommunication, "all_gather", 8, 8).empty());
  std::vector<OrderConflict> found;
  log_.remove(view(0, 64), task(kUpdate, "Buffer"), clocks_[kUpdate], found);

  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].sentence(), testing::HasSubstr("frees bytes 8 to 16 of 64 that 'all_gather'"));
  // The next owner of the memory has nothing to do with it.
  log_.add(view(0, 64));
  EXPECT_TRUE(writing(kUpdate, "a", 0, 64).empty());
}

TEST_F(AccessLogTest, KeepsOneRangeOfWhatIsWrittenTogether) {
  for (std::size_t first = 0; first < 64; first += 4) {
    EXPECT_TRUE(writing(kUpdate, "a", first, 4).empty());
    EXPECT_TRUE(reading(kUpdate, "b", first, 2).empty());
  }
  EXPECT_GT(log_.ranges(), 16u);
  EXPECT_TRUE(writing(kUpdate, "zero", 0, 64).empty());
  EXPECT_EQ(log_.ranges(), 1u);
}

/// What a log of single bytes that forgets nothing finds, for accesses and waits drawn at random.
TEST_F(AccessLogTest, JoinsWhatFollowsInOneAllocation) {
  AccessLog two;
  // Neighbours by chance.
  two.add(view(0, 32));
  two.add(view(32, 16));
  const auto ranges = [&](const std::vector<BufferView>& views) {
    std::vector<std::pair<std::ptrdiff_t, std::size_t>> found;
    two.for_each_joined(views,
                        [&](BufferView one) { found.emplace_back(one.data - memory_.data(), one.bytes); });
    return found;
  };

  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(ranges({view(0, 8), view(8, 8), view(16, 0), view(16, 16)}), ElementsAre(Pair(0, 32)));
  EXPECT_THAT(ranges({view(8, 8), view(0, 8), view(12, 4)}),
              ElementsAre(Pair(8, 8), Pair(0, 8), Pair(12, 4)));
  EXPECT_THAT(ranges({view(24, 8), view(32, 8), view(40, 8)}), ElementsAre(Pair(24, 8), Pair(32, 16)));
  EXPECT_THAT(ranges({view(0, 8), view(8, 32)}), ElementsAre(Pair(0, 8), Pair(8, 32)));
  EXPECT_THAT(ranges({view(48, 8), view(56, 8)}), ElementsAre(Pair(48, 8), Pair(56, 8)));
  EXPECT_THAT(ranges({}), ElementsAre());
}

TEST_F(AccessLogTest, AgreesWithALogOfBytesThatForgetsNothing) {
  struct Past {
    Moment moment;
    bool writes;
  };
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    actors::RandomStream random(seed, "access log", "accesses");
    const auto below = [&](std::size_t end) {
      return std::size_t{random.below(static_cast<std::uint32_t>(end))};
    };
    std::array<std::byte, 64> memory{};
    AccessLog log;
    log.add(ConstBufferView(memory.data(), memory.size()));
    std::array<OrderClock, 4> clocks;
    std::array<std::vector<Past>, 64> bytes;
    bool is_clean = true;
    for (int step = 0; step < 60 && is_clean; ++step) {
      const LineId line = below(3);
      auto& clock = clocks[line];
      if (below(2) == 0) {
        clock.join(clocks[below(3)]);
        continue;
      }
      const Moment moment{line, clock.tick_of(line) + 1};
      clock.advance(moment);
      const std::size_t first = below(64), count = 1 + below(64 - first);
      const bool writes = below(3) == 0;
      bool is_ordered = true;
      for (std::size_t i = first; i < first + count; ++i) {
        for (const auto& past : bytes[i])
          is_ordered = is_ordered && ((!past.writes && !writes) || clock.covers(past.moment));
        bytes[i].push_back({moment, writes});
      }
      std::vector<OrderConflict> found;
      const AccessLog::Task now{moment, {"task", "a stream"}};
      if (writes) {
        log.write({memory.data() + first, count}, now, clock, found);
      } else {
        log.read({memory.data() + first, count}, now, clock, found);
      }
      EXPECT_EQ(found.empty(), is_ordered) << "seed " << seed << ", step " << step;
      // Past the first conflict there is no order that could be kept.
      is_clean = is_ordered;
    }
  }
}

}  // namespace
}  // namespace troupe::gpu
