#include "apps/gpt/stage/in_step.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

Result<void> InStep::run(const std::function<Result<void>(std::size_t member)>& body) {
  CHECK(fibers_.empty(), "members run one body at a time");
  waiting_ = 0;
  first_failure_ = {};
  for (std::size_t member = 0; member < members_; ++member) {
    fibers_.push_back(std::make_unique<posix::Fiber>([this, &body, member] {
      const auto ended = body(member);
      if (!ended && first_failure_) first_failure_ = ended;
    }));
  }
  std::size_t ended = 0;
  while (ended < members_) {
    ended = 0;
    for (running_ = 0; running_ < members_; ++running_) {
      if (!fibers_[running_]->has_ended()) fibers_[running_]->resume();
      ended += fibers_[running_]->has_ended() ? 1 : 0;
    }
    CHECK(ended == members_ || !first_failure_ || waiting_ + ended < members_,
          "members come to the same meetings");
  }
  fibers_.clear();
  return first_failure_;
}

Result<void> InStep::meet(const Work& together) {
  TRY(first_failure_);
  if (++waiting_ < members_) {
    const auto meeting = meetings_;
    while (meeting == meetings_ && first_failure_) fibers_[running_]->yield();
    TRY(first_failure_);
    return met_;
  }
  waiting_ = 0;
  meetings_ += 1;
  met_ = together();
  if (!met_) first_failure_ = met_;
  return met_;
}

}  // namespace troupe::apps::gpt
