#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/list.hpp"
#include "core/result.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/tcp/connection.hpp"
#include "gpu/collective/tcp/hub.hpp"
#include "gpu/collective/tcp/passage.hpp"

namespace troupe::gpu {

/// Bytes to or from one other member. The slot tells transfers between the same two members apart: of those
/// with one slot the first sent goes to the first posted.
struct Transfer {
  int peer = 0;
  std::uint64_t slot = 0;
  std::byte* data = nullptr;  ///< only read when sending
  std::size_t bytes = 0;      ///< 0: no transfer at all
  /// Agreement::words_to(), with the first that is sent to a member for an operation. Alive until posted.
  const std::string* words = nullptr;
};

/// A transfer that was posted and goes on by itself. One thread at a time uses it.
class PostedTransfer {
 public:
  virtual ~PostedTransfer() = default;
  /// The member at the other side, when the transfer is complete. An error is the mesh's, as in
  /// Mesh::exchange().
  virtual core::Result<int> wait(const OperationDeadline& deadline) = 0;
};

/// Connections between all members of a group, and the messages on them. Thread-safe.
class Mesh final : private MovedByHub {
 public:
  /// What moves the bytes: threads while they wait, which is fastest, or besides the hub's thread, always.
  enum class MovedBy : std::uint8_t { waiters, hub };
  static core::Result<std::unique_ptr<Mesh>> connect(std::shared_ptr<TcpHub> hub, const GroupOptions& group,
                                                     Rendezvous& rendezvous, MovedBy moved_by);
  ~Mesh() override;

  const GroupOptions& group() const { return group_; }
  int index() const { return index_; }

  /// The transfers that follow, with this slot, belong to this operation. An Error is a member's that has
  /// posted another one.
  core::Result<void> begin_operation(std::uint64_t slot, const Operation& operation,
                                     const OperationDeadline& deadline);
  /// Begins transfers, whose memory stays alive until wait() has returned, the mesh has failed, or it is
  /// gone. After an error the mesh is no longer usable, here or on other members.
  core::Result<void> post(std::span<const Transfer> receives, std::span<const Transfer> sends,
                          std::vector<PassagePtr>& into);
  core::Result<void> wait(std::span<const PassagePtr> passages, const OperationDeadline& deadline);
  core::Result<void> exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                              const OperationDeadline& deadline);

  /// Transfers one by one, for messages with tags. A receive from the peer kAnyMember takes the first that
  /// comes from anybody. Zero bytes are not a message.
  core::Result<std::unique_ptr<PostedTransfer>> post_send(const Transfer& transfer);
  core::Result<std::unique_ptr<PostedTransfer>> post_receive(const Transfer& transfer);

  /// Running and later exchanges end in this error, or in the first one given; returns the one used. The
  /// other members are told.
  core::Error fail(core::Error error);
  std::optional<core::Error> failure() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Posted;

  Mesh(std::shared_ptr<TcpHub> hub, GroupOptions group, int index, MovedBy moved_by, posix::Descriptor events,
       std::vector<std::unique_ptr<Connection>> connections);
  void move() override;
  core::Result<void> check_usable(int peer);
  core::Result<void> begin(const Transfer& transfer, bool sends, std::vector<PassagePtr>& into);
  bool move_needed();
  bool move_one(Connection& connection);
  bool move_what_can(int milliseconds, Lock* lock);
  void block_on_output(Connection& connection);
  void lose(Connection& connection, core::Error reason);
  void hear_last_words(Connection& gone, core::Error& reason);
  core::Error fail_locked(core::Error error);
  core::Error late(const OperationDeadline& deadline, std::span<const PassagePtr> passages) const;
  void check_agreement();
  core::Error lost(int peer, const core::Error& reason) const;
  core::Error nobody_left() const;

  const std::shared_ptr<TcpHub> hub_;  // shared with the back-end and its other meshes
  const GroupOptions group_;
  const int index_;
  const MovedBy moved_by_;
  const posix::Descriptor events_;  ///< epoll
  mutable std::mutex mutex_;        // guards everything below
  std::condition_variable changed_;
  core::List<int, std::unique_ptr<Connection>> connections_;  ///< none to itself
  Inbox inbox_;
  std::optional<core::Error> failure_;
  std::string doing_;    ///< the last operation that was waited for
  bool driven_ = false;  ///< a waiting thread moves bytes
  int followers_ = 0;    ///< threads that wait for one that does
};

}  // namespace troupe::gpu
