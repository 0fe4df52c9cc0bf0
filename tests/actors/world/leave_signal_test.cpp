#include "actors/world/leave_signal.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "actors/world/exit_status.hpp"

namespace troupe::actors {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

class LeaveSignalTest : public testing::Test {
 protected:
  LeaveSignalTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // Not in the process of a death test, which inherits it.
    const auto name = "leave-signal-test-" + std::to_string(getpid());
    setenv("TROUPE_FAILURE_FILE", (std::filesystem::temp_directory_path() / name).c_str(), 0);
    failure_file_ = *process_variables()("TROUPE_FAILURE_FILE");
  }
  ~LeaveSignalTest() override {
    std::filesystem::remove(failure_file_);
    unsetenv("TROUPE_FAILURE_FILE");
  }

  void write_failure() const { std::ofstream(failure_file_) << "rank 2 failed: SIGKILL (signal 9)"; }

  std::string failure_file_;
};

using LeaveSignalDeathTest = LeaveSignalTest;

/// A rank that is not ended ends as nobody expects.
[[noreturn]] void wait_for_the_end() {
  ::poll(nullptr, 0, 20'000);
  std::_Exit(1);
}

TEST_F(LeaveSignalTest, IsAWishOnceTheTrainerListens) {
  std::promise<void> asked;
  LeaveSignal leave([&] { asked.set_value(); });
  leave.listen();

  kill(getpid(), SIGTERM);

  EXPECT_EQ(asked.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST_F(LeaveSignalDeathTest, EndsAProcessThatDoesNotListenYet) {
  EXPECT_EXIT(
      {
        LeaveSignal leave([] {});
        kill(getpid(), SIGTERM);
        wait_for_the_end();
      },
      KilledBySignal(SIGTERM), "");
}

TEST_F(LeaveSignalDeathTest, EndsTheRankWithItsJobNamingTheFailed) {
  for (bool listens : {false, true}) {
    EXPECT_EXIT(
        {
          write_failure();
          LeaveSignal leave([] {});
          if (listens) leave.listen();
          kill(getpid(), SIGTERM);
          wait_for_the_end();
        },
        ExitedWithCode(kExitFenced), "this rank ends with its job: rank 2 failed: SIGKILL")
        << "listens: " << listens;
  }
}

TEST_F(LeaveSignalDeathTest, LetsASelfEndingTrainerEndItsOwnWay) {
  EXPECT_EXIT(
      {
        write_failure();
        {
          LeaveSignal leave([] {});
          leave.listen();
          kill(getpid(), SIGTERM);
        }
        std::exit(3);
      },
      ExitedWithCode(3), "");
}

}  // namespace
}  // namespace troupe::actors
