#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "apps/troupe/launch/nodes/link.hpp"
#include "apps/troupe/launch/nodes/meeting.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Whether this machine has the address of the meeting place, so that this launcher can serve there.
bool is_here(const Meeting& meeting);

/// Where the launcher of node 0 listens for the others. Strangers, who do not know the secret, get no further
/// than here, and take at most 64 connections and 8 MiB.
class Lobby {
 public:
  /// `hello` gets each launcher that has proved itself, with what it said first.
  using Guest = std::function<void(std::shared_ptr<NodeLink> link, Hello hello)>;

  Lobby(asio::io_context& loop, std::string host, Heartbeat heartbeat);
  ~Lobby();
  Lobby(const Lobby&) = delete;
  Lobby& operator=(const Lobby&) = delete;

  /// Errc::already_exists if somebody listens there already.
  core::Result<void> open(const Meeting& meeting);
  /// From now on guests are let in. `refused` gets a line for people for each of the first strangers, and
  /// then one whenever there are ten times as many.
  void start(const actors::JobToken& secret, Guest guest, std::function<void(std::string)> refused);
  void close();

 private:
  void accept();
  void receive(asio::ip::tcp::socket socket);
  void forget(const NodeLink* link);
  void complain(const NodeLink& link, const std::string& reason);

  asio::io_context& loop_;
  std::string host_;
  Heartbeat heartbeat_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  actors::JobToken secret_{};
  Guest guest_;
  std::function<void(std::string)> refused_;
  std::deque<std::shared_ptr<NodeLink>> strangers_;  ///< who have not said who they are; the oldest first
  int turned_away_ = 0;
  int next_to_say_ = 100;
};

}  // namespace troupe::apps
