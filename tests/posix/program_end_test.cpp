#include "posix/program_end.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/child.hpp"

namespace troupe::posix {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

void without_core() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

void throw_no_memory() {
  std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
}

void use_up_memory() {
  const rlimit limit{256 << 20, 256 << 20};
  ::setrlimit(RLIMIT_AS, &limit);
  std::vector<std::vector<char>> kept;
  for (;;) kept.emplace_back(16 << 20);
}

TEST(NamedProgram, EndsWithASentenceWhereAThreadExhaustsMemory) {
  if (tests::is_sanitized()) GTEST_SKIP() << "sanitizers have an operator new of their own";

  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        std::jthread(use_up_memory).join();
      },
      ExitedWithCode(3), "^player: there is no memory left for this; give it more");
}

TEST(NamedProgram, EndsWithASentenceWhereNothingMayBeThrown) {
  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        []() noexcept { throw_no_memory(); }();
      },
      ExitedWithCode(3), "^player: there is no memory left for this");
}

TEST(NamedProgram, SaysWhatToDoWithoutAnotherThread) {
  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        std::jthread([] {
          std::rethrow_exception(std::make_exception_ptr(
              std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))));
        }).join();
      },
      ExitedWithCode(3),
      "^player: Resource temporarily unavailable; raise the limit of threads \\(ulimit -u");
}

TEST(NamedProgram, WritesOutWhatWasPrinted) {
  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        ::dup2(STDERR_FILENO, STDOUT_FILENO);
        std::setvbuf(stdout, nullptr, _IOFBF, 4096);
        std::fputs("step 1\n", stdout);
        end_program("too much");
      },
      ExitedWithCode(3), "player: too much\nstep 1");
}

TEST(NamedProgram, LeavesDefectsToTheFormerHandler) {
  EXPECT_EXIT(
      {
        without_core();
        const NamedProgram named("player", 3);
        std::jthread([] {
          std::rethrow_exception(std::make_exception_ptr(std::logic_error("a defect")));
        }).join();
      },
      KilledBySignal(SIGABRT), "a defect");
}

TEST(NamedProgram, MayHaveAnotherWithinIt) {
  EXPECT_EXIT(
      {
        const NamedProgram outer("player", 3);
        { const NamedProgram inner("inner", 4); }
        std::jthread(throw_no_memory).join();
      },
      ExitedWithCode(3), "^player: there is no memory");
  EXPECT_EXIT(
      {
        without_core();
        const NamedProgram outer("player", 3);
        const NamedProgram inner("inner", 4);
        std::jthread([] {
          std::rethrow_exception(std::make_exception_ptr(std::logic_error("a defect")));
        }).join();
      },
      KilledBySignal(SIGABRT), "a defect");
}

TEST(NamedProgram, LeavesTheHandlersAsTheyWere) {
  const auto terminate = std::get_terminate();
  const auto find_memory = std::get_new_handler();

  { const NamedProgram named("player", 3); }

  EXPECT_EQ(std::get_terminate(), terminate);
  EXPECT_EQ(std::get_new_handler(), find_memory);
}

}  // namespace
}  // namespace troupe::posix
