#include "tests/support/child.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace troupe::tests {

namespace {

std::uint64_t resident_bytes() {
  unsigned long all = 0;
  unsigned long resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lu %lu", &all, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

ChildEnd run_in_child(const std::function<int()>& code, ChildLimits limits) {
  const auto before = resident_bytes();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{limits.cpu_seconds, limits.cpu_seconds + 1};
    ::setrlimit(RLIMIT_CPU, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::alarm(limits.seconds);
    ::_exit(code());
  }
  int status = 0;
  rusage used{};
  ChildEnd end;
  if (child < 0 || ::wait4(child, &status, 0, &used) != child) return end;
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  end.grown_bytes = static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
  end.grown_bytes -= std::min(end.grown_bytes, before);
  return end;
}

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace troupe::tests
