#include "apps/gpt/stage/in_step.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/errors.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Errc;
using core::Result;

TEST(InStep, MembersMeetOnceForAll) {
  for (const std::size_t count : {1, 2, 3, 5}) {
    InStep members(count);
    int together = 0;
    std::vector<int> seen(count);

    const auto ran = members.run([&](std::size_t member) -> Result<void> {
      for (int meeting = 1; meeting <= 4; ++meeting) {
        TRY(members.meet([&]() -> Result<void> {
          together += 1;
          return {};
        }));
        if (together < meeting) return core::fail(Errc::internal, "went on too early");
        seen[member] += 1;
      }
      return {};
    });

    EXPECT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(together, 4);
    EXPECT_EQ(seen, std::vector<int>(count, 4));
  }
}

TEST(InStep, NobodyPassesAMeetingThatOthersHaveNotReached) {
  InStep members(3);
  std::string said;

  ASSERT_TRUE(members.run([&](std::size_t member) -> Result<void> {
    for (const char step : {'a', 'b', 'c'}) {
      said += step;
      TRY(members.meet([] { return Result<void>(); }));
    }
    said += static_cast<char>('0' + member);
    return {};
  }));

  EXPECT_EQ(said.substr(0, 9), "aaabbbccc");
  EXPECT_EQ(said.size(), 12U);
}

TEST(InStep, AFailureIsEveryones) {
  InStep members(3);
  int ended = 0;
  const auto failed = members.run([&](std::size_t member) -> Result<void> {
    TRY(members.meet([] { return Result<void>(); }));
    if (member == 1) return core::fail(Errc::io, "the disk is full");
    const auto met = members.meet([] { return Result<void>(); });
    ended += met ? 0 : 1;
    return met;
  });

  EXPECT_EQ(failed.error().message, "the disk is full");
  EXPECT_EQ(ended, 2);

  const auto together = members.run([&](std::size_t) -> Result<void> {
    return members.meet([]() -> Result<void> { return core::fail(Errc::unavailable, "nobody answers"); });
  });
  EXPECT_EQ(together.error().message, "nobody answers");
}

}  // namespace
}  // namespace troupe::apps::gpt
