#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "actors/world/transport/sealed_frames.hpp"
#include "apps/troupe/launch/nodes/messages.hpp"

namespace troupe::apps {

/// How the death of a connection is noticed that nobody closes.
struct Heartbeat {
  std::chrono::nanoseconds interval = std::chrono::seconds(1);
  std::chrono::nanoseconds patience = std::chrono::seconds(5);
};

/// A connection between the launchers of two nodes. One thread, that of the loop.
class NodeLink : public std::enable_shared_from_this<NodeLink> {
 public:
  struct Handlers {
    std::function<void()> met;  ///< the peer has introduced itself; from now on send() works
    std::function<void(NodeMessage)> message;
    std::function<void(std::string reason)> lost;  ///< once, and nothing after it
  };

  NodeLink(asio::ip::tcp::socket socket, const actors::JobToken& secret, actors::SealedFrames::Side side,
           Heartbeat heartbeat);

  void start(Handlers handlers);
  void set_handlers(Handlers handlers) { handlers_ = std::move(handlers); }
  void send(const NodeMessage& message);
  /// No handler is called any more.
  void close();
  /// The same, after the peer has taken all that was sent and has closed; `closed` is called then, or after
  /// two seconds.
  void close_when_taken(std::function<void()> closed);

  const std::string& peer_address() const { return peer_address_; }
  const std::string& own_address() const { return own_address_; }
  bool is_open() const { return socket_.is_open(); }

 private:
  void read();
  void take(std::size_t bytes);
  void write();
  void beat();
  void lose(const std::string& reason);

  asio::ip::tcp::socket socket_;
  actors::SealedFrames frames_;
  Heartbeat heartbeat_;
  Handlers handlers_;
  asio::steady_timer timer_;
  std::array<char, 64 * 1024> buffer_;
  std::string outgoing_;
  std::string being_written_;
  std::function<void()> closed_;
  std::string peer_address_;
  std::string own_address_;
  std::chrono::steady_clock::time_point last_heard_;
  std::chrono::steady_clock::time_point last_beat_;
};

}  // namespace troupe::apps
