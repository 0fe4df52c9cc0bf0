#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "actors/shell/process_rank.hpp"
#include "gpu/devices.hpp"
#include "tests/actors/shell/script_machine.hpp"

namespace troupe::actors {
namespace {

/// Standard error of this process as a pipe, as long as it lives.
class StandardErrorPipe {
 public:
  StandardErrorPipe() : before_(::dup(STDERR_FILENO)) {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~StandardErrorPipe() {
    ::dup2(before_, STDERR_FILENO);
    for (int end : {before_, ends_[0], ends_[1]}) ::close(end);
  }

  /// What comes first, or nothing within a minute.
  std::string read() {
    pollfd ready{ends_[0], POLLIN, 0};
    if (::poll(&ready, 1, 60'000) != 1) return {};
    std::array<char, 4096> bytes;
    const auto got = ::read(ends_[0], bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  int before_;
  std::array<int, 2> ends_{};
};

TEST(ProcessWorldWaits, ASignalBeforeThereIsADeviceIsAnswered) {
  ProcessWorldOptions options;
  options.environment = [] { return core::Result<JobEnvironment>(JobEnvironment()); };
  std::string answer;
  options.open_device = [&answer](gpu::DeviceFailed on_failure) {
    StandardErrorPipe standard_error;
    ::kill(::getpid(), SIGUSR1);
    answer = standard_error.read();
    return gpu::open_device("host", std::move(on_failure));
  };

  auto world = ProcessRank::create(std::move(options));

  ASSERT_TRUE(world) << world.error().message;
  EXPECT_EQ(answer, "who waits for whom, rank 0:\nno actors are there\n");
}

TEST(ProcessWorldWaits, AQuestionWhileActorsAreSpawnedIsAnswered) {
  ProcessWorldOptions options;
  options.environment = [] { return core::Result<JobEnvironment>(JobEnvironment()); };
  auto world = ProcessRank::create(std::move(options)).value();
  ASSERT_TRUE(world->open({}));
  ScriptMachine::Script script;
  std::atomic<bool> is_over{false};
  std::thread asker([&] {
    while (!is_over) (void)world->wait_reports();
  });

  for (std::uint32_t i = 0; i < 100; ++i)
    world->spawn({{0}, messages::Role::gradient_bucket, i}, std::make_unique<ScriptMachine>(&script));
  is_over = true;
  asker.join();

  EXPECT_EQ(world->wait_reports().size(), 100u);
  world->close();
}

}  // namespace
}  // namespace troupe::actors
