#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/result.hpp"
#include "posix/fiber.hpp"

namespace troupe::apps::gpt {

/// The members of a group that are all on this rank: each has a stack of its own, they run one after another
/// in one thread, and they wait for each other where they meet. Which of them runs when follows from their
/// meetings alone.
class InStep {
 public:
  using Work = std::function<core::Result<void>()>;

  explicit InStep(std::size_t members) : members_(members) {}
  InStep(const InStep&) = delete;
  InStep& operator=(const InStep&) = delete;

  std::size_t members() const { return members_; }
  /// Runs `body` as each member, to the end. All come to the same meetings; the first Error of a member, or
  /// of what they meet for, is everyone's.
  core::Result<void> run(const std::function<core::Result<void>(std::size_t member)>& body);
  /// From within a body: waits until all members are here. Then the `together` of the last one to come runs,
  /// once, and all go on with what it returns.
  core::Result<void> meet(const Work& together);

 private:
  std::size_t members_;
  std::vector<std::unique_ptr<posix::Fiber>> fibers_;
  std::size_t running_ = 0;
  std::size_t waiting_ = 0;  ///< members at the next meeting
  std::size_t meetings_ = 0;
  core::Result<void> met_;  ///< what the last meeting came to
  core::Result<void> first_failure_;
};

}  // namespace troupe::apps::gpt
