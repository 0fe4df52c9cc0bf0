#include "gpu/collective/nccl/poll.hpp"

#include <algorithm>
#include <thread>

#include "posix/countdown.hpp"

namespace troupe::gpu {

NcclStatus poll_nccl(const NcclApi& api, NcclComm comm, std::chrono::steady_clock::time_point give_up,
                     const std::function<bool()>& is_over) {
  std::chrono::microseconds pause(50);
  constexpr std::chrono::microseconds kLongest = std::chrono::milliseconds(5);
  for (posix::Countdown countdown(give_up - std::chrono::steady_clock::now());;) {
    NcclStatus state = NcclStatus::in_progress;
    const NcclStatus asked = api.comm_get_async_error(comm, &state);
    if (asked != NcclStatus::success) return asked;
    if (state != NcclStatus::in_progress) return state;
    if (is_over() || countdown.left() == std::chrono::nanoseconds::zero()) return NcclStatus::in_progress;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongest);
  }
}

}  // namespace troupe::gpu
