#include "actors/world/signal_watcher.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace troupe::actors {
namespace {

TEST(SignalWatcher, LeavesOtherSignalsToLaterWatchers) {
  std::promise<void> first;
  std::promise<void> second;
  SignalWatcher early(SIGUSR2, [&] { first.set_value(); });
  SignalWatcher late(SIGTERM, [&] { second.set_value(); });

  kill(getpid(), SIGTERM);
  kill(getpid(), SIGUSR2);

  EXPECT_EQ(first.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(second.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST(SignalWatcher, HearsASignalTakenByAnUnblockedThread) {
  std::promise<void> heard;
  std::promise<void> started;
  std::promise<void> end;
  std::jthread foreign([&, ended = end.get_future()] {
    sigset_t nothing;
    sigemptyset(&nothing);
    pthread_sigmask(SIG_SETMASK, &nothing, nullptr);
    started.set_value();
    ended.wait();
  });
  started.get_future().wait();
  SignalWatcher watcher(SIGUSR2, [&] { heard.set_value(); });

  pthread_kill(foreign.native_handle(), SIGUSR2);

  EXPECT_EQ(heard.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  end.set_value();
}

TEST(SignalWatcher, HearsEverySignalUntilGoneAndAfterAnother) {
  for (int watchers = 0; watchers < 3; ++watchers) {
    std::promise<void> twice;
    int heard = 0;
    SignalWatcher watcher(SIGUSR2, [&] {
      if (++heard == 1) pthread_kill(pthread_self(), SIGUSR2);
      if (heard == 2) twice.set_value();
    });

    kill(getpid(), SIGUSR2);

    EXPECT_EQ(twice.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }
}

}  // namespace
}  // namespace troupe::actors
