#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Looks from time to time whether the members of a group need not be waited for any more: a rendezvous
/// answers nothing but the job's first failure once there is one.
class JobFailure {
 public:
  /// `key` has been set. `rendezvous` must outlive it.
  JobFailure(Rendezvous& rendezvous, std::string key) : rendezvous_(rendezvous), key_(std::move(key)) {}

  /// The failure, if there is one and it was time to look.
  std::optional<core::Error> look() {
    const auto now = std::chrono::steady_clock::now();
    if (found_ || now < next_) return found_;
    next_ = now + std::chrono::milliseconds(250);
    auto answer = rendezvous_.get(key_, std::chrono::milliseconds(100));
    if (!answer && answer.error().code != core::Errc::timeout) found_ = std::move(answer).error();
    return found_;
  }

 private:
  Rendezvous& rendezvous_;
  const std::string key_;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  std::optional<core::Error> found_;
};

}  // namespace troupe::gpu
