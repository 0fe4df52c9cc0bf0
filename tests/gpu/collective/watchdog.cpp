#include "tests/gpu/collective/watchdog.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace troupe::gpu {

Watchdog::Watchdog() : thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::seconds(30), [this] { return is_over_; })) return;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  ADD_FAILURE() << test->test_suite_name() << "." << test->name()
                << " has not ended after 30 s: neither a deadline nor an abort ended what still waits";
  std::fflush(stdout);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace troupe::gpu
