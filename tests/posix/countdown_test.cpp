#include "posix/countdown.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace troupe::posix {
namespace {

using namespace std::chrono_literals;

constexpr Countdown::Clock::time_point kStart{100s};

TEST(Countdown, CountsTheTimeBetweenLooks) {
  Countdown countdown(10s, kStart);

  EXPECT_EQ(countdown.left(kStart + 1s), 9s);
  EXPECT_EQ(countdown.left(kStart + 1s), 9s);
  EXPECT_EQ(countdown.left(kStart + 3s), 7s);
}

TEST(Countdown, EndsAtZero) {
  Countdown countdown(1s, kStart);

  EXPECT_EQ(countdown.left(kStart + 2s), 0s);
  EXPECT_EQ(countdown.left(kStart + 3s), 0s);
}

TEST(Countdown, LeavesOutTheTimeInWhichNobodyLooked) {
  Countdown countdown(10s, kStart);

  EXPECT_EQ(countdown.left(kStart + 1h), 9500ms);
  EXPECT_EQ(countdown.left(kStart + 1h + 1s), 8500ms);
}

TEST(Countdown, MayLastForEver) {
  Countdown countdown(std::chrono::nanoseconds::max(), kStart);

  EXPECT_GT(countdown.left(kStart + 1s), std::chrono::hours(24 * 365 * 100));
  EXPECT_EQ(countdown.next_wait(), Countdown::kLook);
}

TEST(WaitWhileRunning, EndsInTimeOrWhenItIsReady) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto begin = Countdown::Clock::now();

  EXPECT_TRUE(wait_while_running(changed, lock, 0s, [] { return true; }));
  EXPECT_FALSE(wait_while_running(changed, lock, 30ms, [] { return false; }));
  EXPECT_GE(Countdown::Clock::now() - begin, 30ms);
}

/// Waits for a second, of which it is stopped for longer.
TEST(WaitWhileRunning, DoesNotCountTimeWhileTheProcessIsStopped) {
  const pid_t waiting = ::fork();
  if (waiting == 0) {
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_lock lock(mutex);
    const auto begin = Countdown::Clock::now();
    ::raise(SIGSTOP);  // the parent lets it go on
    const bool stopped = Countdown::Clock::now() - begin > 0s;
    const bool ready =
        wait_while_running(changed, lock, 1s, [&] { return Countdown::Clock::now() - begin > 4s; });
    ::_exit(stopped && ready ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(waiting, &status, WUNTRACED), waiting);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(waiting, SIGCONT);
  ::poll(nullptr, 0, 300);

  ::kill(waiting, SIGSTOP);
  ::poll(nullptr, 0, 4000);
  ::kill(waiting, SIGCONT);

  ASSERT_EQ(::waitpid(waiting, &status, 0), waiting);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the wait ended when the process went on";
}

}  // namespace
}  // namespace troupe::posix
