#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/result.hpp"
#include "gpu/collective/group.hpp"
#include "posix/countdown.hpp"

namespace troupe::gpu {

/// An operation's deadline, and a description of the operation for errors.
struct OperationDeadline {
  /// `limit` from now.
  OperationDeadline(std::string operation, std::chrono::nanoseconds limit)
      : text_(std::move(operation)), limit_(limit), countdown_(limit) {}
  OperationDeadline(OperationKind kind, std::uint64_t number, std::chrono::nanoseconds limit)
      : kind_(kind), number_(number), limit_(limit), countdown_(limit) {}

  /// "all_reduce 17".
  std::string what() const;

  /// "all_reduce 17 did not end within 50 ms".
  std::string passed() const;
  /// What is left of it, at least zero. One thread waits, and asks every posix::Countdown::kLook.
  std::chrono::nanoseconds left() const { return countdown_.left(); }

 private:
  // Most operations never need their text.
  std::string text_;
  OperationKind kind_{};
  std::uint64_t number_ = 0;
  std::chrono::nanoseconds limit_;
  mutable posix::Countdown countdown_;
};

/// One member's side of a group whose operations run to completion in the stream's thread. All functions
/// except run() may be called from any thread at any time.
class BlockingMember {
 public:
  virtual ~BlockingMember() = default;

  virtual const GroupOptions& group() const = 0;
  virtual int index() const = 0;

  /// Runs a prepared operation. Collectives come one at a time, and so do the messages to each other member
  /// and those from it; `sequence` numbers the operations in each of these series.
  virtual core::Result<void> run(const Operation& operation, std::uint64_t sequence,
                                 const OperationDeadline& deadline) = 0;

  /// Ends the group with this error, or with the one that ended it before; returns that error.
  virtual core::Error fail(core::Error error) = 0;
  virtual void abort(core::Error reason) = 0;
  /// The error that ended the group.
  virtual std::optional<core::Error> failure() const = 0;
};

/// The group of a member: checks operations, keeps them in posting order on any streams, and reports.
std::unique_ptr<Group> make_blocking_group(std::unique_ptr<BlockingMember> member);

}  // namespace troupe::gpu
