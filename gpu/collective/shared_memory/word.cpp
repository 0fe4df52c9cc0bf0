#include "gpu/collective/shared_memory/word.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace troupe::gpu {

void wake(SharedWord& word) noexcept {
  // Sequentially consistent, like changes of the value: either this thread sees the sleeper or the sleeper
  // sees the new value.
  if (word.sleepers.load() == 0) return;
  syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void publish(SharedWord& word, std::uint32_t value) noexcept {
  word.value.store(value);
  wake(word);
}

void sleep_while(SharedWord& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
  word.sleepers.fetch_add(1);
  if (word.value.load() == seen) {
    syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &timeout, nullptr, 0);
  }
  word.sleepers.fetch_sub(1);
}

void pause_briefly() noexcept {
  // The awaited thread may be queued behind this one on the same core; then it runs now. With no other thread
  // on the core this costs a fraction of a microsecond.
  sched_yield();
}

}  // namespace troupe::gpu
