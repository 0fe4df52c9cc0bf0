#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "apps/troupe/launch/job.hpp"
#include "tests/launch/running_launcher.hpp"

namespace {

std::atomic<bool> getrandom_fails{false};

}  // namespace

/// Stands before the C library's for all of this program.
extern "C" ssize_t getrandom(void* bytes, size_t count, unsigned flags) {
  if (getrandom_fails) {
    errno = ENOSYS;
    return -1;
  }
  return ::syscall(SYS_getrandom, bytes, count, flags);
}

namespace troupe::apps {
namespace {

TEST(JobsToken, IsNeverGuessableAlthoughTheSystemCallFails) {
  const TemporaryDirectory logs;
  LaunchOptions options;
  options.program = {"true"};
  options.standalone = true;
  options.log_dir = logs.path().string();

  getrandom_fails = true;
  const auto job = prepare_job(options);
  getrandom_fails = false;

  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->token.size(), 64U);
  EXPECT_NE(job->token, std::string(64, '0'));
  EXPECT_NE(job->id.substr(job->id.rfind('_')), "_0000000000000000");
}

}  // namespace
}  // namespace troupe::apps
