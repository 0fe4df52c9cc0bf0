#include "posix/program_end.hpp"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

namespace troupe::posix {

namespace {

// Handlers get no context of ours, so these belong to the process.
std::atomic<const char*> program{"troupe"};
std::atomic<int> exit_code{1};
std::atomic<std::terminate_handler> end_by_defect{nullptr};

[[noreturn]] void end_without_memory() {
  end_program(kNoMemory);
}

[[noreturn]] void end_by_exception() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (const std::system_error& error) {
    std::array<char, 512> words;
    const auto end =
        fmt::format_to_n(words.data(), words.size(), "{}{}", error.what(), advice_for(error.code())).out;
    end_program({words.data(), static_cast<std::size_t>(end - words.data())});
  } catch (...) {  // a defect: the former handler says what it is
  }
  if (const auto handler = end_by_defect.load()) handler();
  std::abort();
}

}  // namespace

NamedProgram::NamedProgram(const char* name, int failed)
    : former_name_(program.exchange(name)),
      former_exit_code_(exit_code.exchange(failed)),
      former_new_handler_(std::set_new_handler(end_without_memory)),
      former_terminate_(std::set_terminate(end_by_exception)) {
  if (former_terminate_ != end_by_exception) end_by_defect = former_terminate_;
}

NamedProgram::~NamedProgram() {
  program = former_name_;
  exit_code = former_exit_code_;
  std::set_new_handler(former_new_handler_);
  std::set_terminate(former_terminate_);
}

std::string_view advice_for(const std::error_code& error) {
  if (error == std::errc::resource_unavailable_try_again)
    return "; raise the limit of threads (ulimit -u, or pids.max of the control group) or start fewer ranks";
  if (error == std::errc::too_many_files_open || error == std::errc::too_many_files_open_in_system)
    return "; raise the limit of open files (ulimit -n)";
  return "";
}

void end_program(std::string_view why) noexcept {
  const char* const name = program;
  const std::array<std::string_view, 4> parts{name, ": ", why, "\n"};
  std::array<iovec, 4> pieces{};
  for (std::size_t i = 0; i < parts.size(); ++i)
    pieces[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
  [[maybe_unused]] const auto written =
      ::writev(STDERR_FILENO, pieces.data(), static_cast<int>(pieces.size()));
  // What was printed goes out, unless another thread is just printing.
  if (::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
  ::_exit(exit_code);
}

}  // namespace troupe::posix
