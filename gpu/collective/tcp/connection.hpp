#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/result.hpp"
#include "gpu/collective/tcp/passage.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

/// Messages to and from one other member over one TCP connection, without waiting: the mesh says when.
/// Messages up to kEagerBytes are sent at once, as long as the other member has not too many of them that
/// nobody wanted yet; others are announced, and follow when their receive is posted. Not thread-safe: guarded
/// by the mesh.
class Connection {
 public:
  static constexpr std::size_t kEagerBytes = std::size_t{256} << 10;

  /// `where`: where the member was reached, for people.
  Connection(posix::Descriptor socket, int peer, std::string where)
      : socket_(std::move(socket)), peer_(peer), where_(std::move(where)) {}

  int descriptor() const { return socket_.get(); }
  int peer() const { return peer_; }
  const std::string& where() const { return where_; }

  /// Queues a message.
  void send(PassagePtr passage);
  /// Queues what this member says of an operation (Agreement).
  void say(std::uint64_t slot, std::string words);
  /// A receive was posted to which this member must answer.
  void expect() { ++open_; }
  /// Brings a receive and the message together that came or was announced before it.
  void settle(EarlyMessage& arrival, const PassagePtr& passage);
  /// Writes the rest of a message that is half sent, but not after `give_up`, and forgets all others.
  void end_frame(std::chrono::steady_clock::time_point give_up);
  /// Queues a last message, if none is half sent, and ends the direction. The memory of messages is no longer
  /// used.
  void part(const core::Error& reason);
  /// Waits until everything queued has reached the other member's host, but not after `give_up`.
  void finish(std::chrono::steady_clock::time_point give_up);

  /// Writes or reads what is possible now. True if anything moved. Errc::peer_lost says only what happened to
  /// the connection; other errors are those of the other member, or about what it sent.
  core::Result<bool> write();
  core::Result<bool> read(Inbox& inbox);

  bool has_output() const { return !out_.empty(); }
  /// Messages that are not over: the other member is needed.
  bool is_needed() const { return open_ > 0; }
  /// Whether the last error is what the other member said when it ended the group.
  bool has_parted() const { return has_parted_; }
  bool is_gone = false;     ///< the mesh found the connection broken
  bool is_blocked = false;  ///< and waits until it can be written

 private:
  enum class Kind : std::uint8_t { eager = 1, announcement, readiness, announced, credit, parting, words };
  /// What precedes the bytes of each frame; all members run the same build on machines with one order of
  /// bytes.
  struct Header {
    Kind kind = Kind::credit;
    std::array<std::uint8_t, 3> unused{};
    std::uint32_t credit = 0;  ///< bytes of eager messages that were taken since the last frame
    std::uint64_t slot = 0;    ///< of messages; or the number of an announcement
    std::uint64_t bytes = 0;   ///< of the message
  };
  struct Frame {
    Header header;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    PassagePtr passage;
    std::string text;
  };

  void queue(Header header, PassagePtr passage);
  void queue_text(Header header, std::string text);
  core::Result<void> begin_text(const Header& header, std::size_t most);
  core::Error not_a_frame() const;
  void owe(std::size_t bytes);
  void complete(Passage& passage);
  core::Result<void> begin(const Header& header, Inbox& inbox);
  core::Result<void> begin_message(const Header& header, Inbox& inbox);
  core::Result<void> aim_at(PassagePtr passage, std::size_t bytes);
  core::Result<void> end(Inbox& inbox);
  core::Result<void> parse(Inbox& inbox);

  const posix::Descriptor socket_;
  const int peer_;
  const std::string where_;
  int open_ = 0;

  std::deque<Frame> out_;
  std::size_t written_ = 0;  ///< of the first frame
  std::size_t credit_ = kWindow;
  std::uint64_t announced_ = 0;
  std::unordered_map<std::uint64_t, PassagePtr> unanswered_;  ///< announced by this member

  static constexpr std::size_t kWindow = std::size_t{4} << 20;
  static constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  std::array<std::byte, std::size_t{16} << 10> staged_;  ///< what was read beyond a frame
  std::size_t staged_bytes_ = 0;
  Header header_;  ///< of the frame that arrives
  std::byte* target_ = nullptr;
  std::size_t remaining_ = 0;
  PassagePtr arriving_;
  EarlyMessagePtr kept_;
  std::string text_;  ///< of a frame that is for this member itself
  bool has_parted_ = false;
  std::size_t owed_ = 0;
  std::uint64_t heard_of_ = 0;                              ///< announcements of the other member
  std::unordered_map<std::uint64_t, PassagePtr> answered_;  ///< of those
};

}  // namespace troupe::gpu
