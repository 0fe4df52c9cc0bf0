#include "apps/troupe/bench/layered_trainer.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/errors.hpp"

namespace troupe::apps {

using core::Result;

Result<actors::StepOutcome> LayeredTrainer::step() {
  TRY(session_.begin_step(1e-3));
  TRY(session_.begin_lane(session_.lanes()[0]));
  auto layers = static_cast<std::uint32_t>(layers_);
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    TRY(session_.before_use({layer}));
    compute(1);
  }
  TRY(session_.begin_backward());
  for (std::uint32_t layer = layers; layer-- > 0;) {
    TRY(session_.before_use({layer}));
    compute(2);
    TRY(session_.gradient({layer}))[0] += 1;
    TRY(session_.gradient_ready({layer}));
  }
  TRY(session_.end_lane(0));
  return session_.finish_step();
}

void LayeredTrainer::compute(int parts) const {
  using Clock = std::chrono::steady_clock;
  if (milliseconds_ <= 0) return;
  const std::chrono::duration<double, std::milli> time(milliseconds_ * parts);
  if (computes_ == Computes::elsewhere) return std::this_thread::sleep_for(time);
  for (const auto begin = Clock::now(); Clock::now() - begin < time;) {
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<std::uint16_t> free_port() {
  int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bool bound = handle >= 0 && bind(handle, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
               getsockname(handle, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (handle >= 0) close(handle);
  if (!bound) return core::fail(core::Errc::io, "bench: there is no free port on the loopback interface");
  return ntohs(address.sin_port);
}

}  // namespace troupe::apps
