#include "actors/world/signal_watcher.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>

namespace troupe::actors {
namespace {

TEST(SignalWatcher, OfOneSignalDoesNotTakeThatOfAWatcherMadeLater) {
  std::promise<void> first;
  std::promise<void> second;
  SignalWatcher early(SIGUSR2, [&] { first.set_value(); });
  SignalWatcher late(SIGTERM, [&] { second.set_value(); });

  kill(getpid(), SIGTERM);
  kill(getpid(), SIGUSR2);

  EXPECT_EQ(first.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(second.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

}  // namespace
}  // namespace troupe::actors
