#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace troupe::gpu {

/// A number in shared memory that processes wait for. Zeroed memory is a word of value 0. A process killed
/// while sleeping here leaves `sleepers` too high, which only costs the others a system call.
struct alignas(64) SharedWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Wakes all sleepers on the word. Call it after changing the value.
void wake(SharedWord& word) noexcept;

/// Changes the value, which only this thread does, and wakes all sleepers.
void publish(SharedWord& word, std::uint32_t value) noexcept;

/// Sleeps while the value is `seen`, for at most `limit`; may return early.
void sleep_while(SharedWord& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept;

/// A short pause for a spinning thread.
void pause_briefly() noexcept;

}  // namespace troupe::gpu
