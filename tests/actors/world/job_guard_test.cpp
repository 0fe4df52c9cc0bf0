#include "actors/world/job_guard.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace troupe::actors {
namespace {

using std::chrono::milliseconds;

TEST(KillUntilNoneIsFound, GivesUpOnAProcessThatDoesNotEnd) {
  int looks = 0;

  const int killed = kill_until_none_is_found(
      [&] {
        ++looks;
        return std::vector<pid_t>{4711};
      },
      [](pid_t) { return true; }, milliseconds(50));

  EXPECT_EQ(killed, 1);
  EXPECT_LE(looks, 100) << "it looks at most once per millisecond";
}

TEST(KillUntilNoneIsFound, KillsWhatIsStartedMeanwhile) {
  std::vector<pid_t> alive{1, 2, 3};

  const int killed = kill_until_none_is_found([&] { return alive; },
                                              [&](pid_t pid) {
                                                std::erase(alive, pid);
                                                if (pid < 10) alive.push_back(10 * pid);
                                                return true;
                                              },
                                              std::chrono::minutes(1));

  EXPECT_EQ(killed, 6);
  EXPECT_TRUE(alive.empty());
}

}  // namespace
}  // namespace troupe::actors
