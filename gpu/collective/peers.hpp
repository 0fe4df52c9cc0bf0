#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "gpu/buffer.hpp"
#include "gpu/collective/group.hpp"
#include "gpu/collective/tcp/mesh.hpp"
#include "gpu/device.hpp"

namespace troupe::gpu {

/// A group of processes without a session, whose operations are on host memory that others own, such as the
/// tensors of another library: collectives over shared memory on one host and over TCP on several, and
/// messages with tags over TCP. Thread-safe. Collectives run one after another in the order of their calls,
/// which is the same on all members. As with Group, after an error other than Errc::invalid_argument nothing
/// more works.
class Peers {
 public:
  struct Options {
    GroupOptions group;
    std::uint64_t host = 0;              ///< equal for ranks that can share memory
    std::string address = "127.0.0.1";   ///< this host, as other members reach it
    std::optional<posix::JobToken> key;  ///< TcpOptions::key
    bool only_tcp = false;               ///< collectives go over TCP on one host too
  };
  /// Called by all members; returns when all have joined. `rendezvous` is used until then. `beside` is an
  /// earlier group of this process whose thread for messages and GroupOptions::recorder are shared, or null.
  static core::Result<std::unique_ptr<Peers>> connect(std::unique_ptr<Rendezvous> rendezvous, Options options,
                                                      const Peers* beside);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// An operation whose input and output are pieces of memory, one part after another; those of an all_reduce
  /// are the same. Operation::input and output are ignored, and the kind is a collective.
  struct Collective {
    Operation operation;
    std::vector<BufferView> inputs;
    std::vector<BufferView> outputs;
  };
  /// Runs it in the calling thread, after all that were posted before.
  core::Result<void> run(Collective collective);
  /// Runs it in a thread of the group's own; its memory stays alive until then. Numbers begin with 1.
  core::Result<std::uint64_t> post(Collective collective);
  /// Waits until the collective with that number has ended. Errc::timeout after `limit`, which does not end
  /// it.
  core::Result<void> wait(std::uint64_t posted, std::chrono::nanoseconds limit);
  /// Collectives up to this number have ended, well or not.
  std::uint64_t completed() const;

  /// Messages to and from a member: those of one member, tag and size arrive in order, and others do not
  /// meet. The memory stays alive until the message has ended or this is gone. `from` may be kAnyMember.
  core::Result<std::unique_ptr<PostedTransfer>> send(int to, std::uint32_t tag, ConstBufferView memory);
  core::Result<std::unique_ptr<PostedTransfer>> receive(int from, std::uint32_t tag, BufferView memory);

  /// From any thread: what runs, and all that comes later, ends in `reason` soon.
  void abort(const core::Error& reason);

  int size() const { return group_->size(); }

 private:
  struct Memory;
  struct Run;
  Peers() = default;
  void finish(std::uint64_t number, const core::Result<void>& result);
  core::Result<void> check_member(int member) const;

  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<CollectiveBackend> backend_;
  std::shared_ptr<TcpHub> connections_;       // shared with the groups that were made beside this one
  std::shared_ptr<FlightRecorder> recorder_;  // shared as above
  std::unique_ptr<Group> group_;
  std::unique_ptr<Mesh> messages_;
  std::unique_ptr<Device> device_;
  std::mutex posting_;  // guards the order of posts, and the two below
  Stream stream_;       ///< from the first post on
  std::uint64_t posted_ = 0;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::uint64_t completed_ = 0;
  std::uint64_t first_failed_ = 0;
  std::optional<core::Error> failure_;
};

}  // namespace troupe::gpu
