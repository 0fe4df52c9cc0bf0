#include "apps/troupe/launch/nodes/lobby.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/error.hpp>
#include <asio/ip/v6_only.hpp>
#include <cstring>
#include <system_error>
#include <utility>
#include <variant>

#include "actors/world/own_address.hpp"
#include "apps/troupe/launch/ports.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using asio::ip::tcp;
using core::Errc;
using core::Result;

constexpr std::size_t kMostStrangers = 64;
constexpr int kNamedStrangers = 8;

/// Where to listen so that all who know the meeting place by its name reach it. /etc/hosts often gives a
/// host's own name the loopback address, by which no other host comes.
Result<tcp::endpoint> place_of(const Meeting& meeting) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(meeting.host.c_str(), nullptr, &hints, &list);
  if (status != 0) {
    return core::fail(Errc::invalid_argument, "{}: the address {} is not known here: {}", meeting.flag,
                      meeting.host, ::gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  tcp::endpoint place;
  std::memcpy(place.data(), list->ai_addr, list->ai_addrlen);
  place.resize(list->ai_addrlen);
  place.port(static_cast<unsigned short>(meeting.port));
  const bool is_everywhere = place.address().is_loopback() && !actors::is_loopback(meeting.host);
  if (is_everywhere) return tcp::endpoint(tcp::v6(), static_cast<unsigned short>(meeting.port));
  return place;
}

}  // namespace

bool is_here(const Meeting& meeting) {
  return check_own_address(meeting.host, meeting.flag).has_value();
}

Lobby::Lobby(asio::io_context& loop, std::string host, Heartbeat heartbeat)
    : loop_(loop), host_(std::move(host)), heartbeat_(heartbeat), acceptor_(loop), pause_(loop) {}

Lobby::~Lobby() {
  close();
}

Result<void> Lobby::open(const Meeting& meeting) {
  auto place = TRY(place_of(meeting));
  std::error_code error;
  acceptor_.open(place.protocol(), error);
  if (error && place.address().is_unspecified()) {
    // A machine without IPv6.
    place = tcp::endpoint(tcp::v4(), place.port());
    acceptor_.open(place.protocol(), error);
  }
  if (!error && place.address().is_unspecified() && place.address().is_v6()) {
    acceptor_.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(place, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (!error) return {};
  std::error_code ignored;
  acceptor_.close(ignored);
  if (error == asio::error::address_in_use) {
    return core::fail(Errc::already_exists,
                      "port {} of {} is in use, perhaps by another job; choose another port in {} (or "
                      "--master-port)",
                      meeting.port, meeting.host, meeting.flag);
  }
  return core::fail(Errc::invalid_argument,
                    "cannot listen at {} port {}: {}; {} is to be the address of node 0, which this is",
                    meeting.host, meeting.port, error.message(), meeting.flag);
}

void Lobby::start(const actors::JobToken& secret, Guest guest, std::function<void(std::string)> refused) {
  secret_ = secret;
  guest_ = std::move(guest);
  refused_ = std::move(refused);
  accept();
}

void Lobby::accept() {
  acceptor_.async_accept([this](const std::error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (!error) {
      receive(std::move(socket));
      return accept();
    }
    // Descriptors may be used up for a while.
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([this](const std::error_code& stopped) {
      if (!stopped) accept();
    });
  });
}

void Lobby::receive(tcp::socket socket) {
  if (strangers_.size() == kMostStrangers) {
    const auto oldest = strangers_.front();
    strangers_.pop_front();
    complain(*oldest, "it has said nothing, and others have come since");
    oldest->close();
  }
  const auto link =
      std::make_shared<NodeLink>(std::move(socket), secret_, actors::SealedFrames::Side::server, heartbeat_);
  strangers_.push_back(link);
  NodeLink* const raw = link.get();
  link->start({
      .met = [this, raw] { raw->send(Greeting{host_}); },
      .message =
          [this, raw](NodeMessage message) {
            const auto known = raw->shared_from_this();
            forget(raw);
            auto* const hello = std::get_if<Hello>(&message);
            if (hello == nullptr) return known->close();
            guest_(known, std::move(*hello));
          },
      .lost =
          [this, raw](const std::string& reason) {
            const auto known = raw->shared_from_this();
            forget(raw);
            complain(*known, reason);
          },
  });
}

void Lobby::complain(const NodeLink& link, const std::string& reason) {
  if (++turned_away_ <= kNamedStrangers) {
    refused_(fmt::format("a connection from {} is not a launcher of this job: {}{}", link.peer_address(),
                         reason, turned_away_ == kNamedStrangers ? "; others like it are only counted" : ""));
  } else if (turned_away_ == next_to_say_) {
    refused_(fmt::format("{} connections were not launchers of this job, the last from {}: {}", turned_away_,
                         link.peer_address(), reason));
    next_to_say_ *= 10;
  }
}

void Lobby::forget(const NodeLink* link) {
  std::erase_if(strangers_, [&](const auto& stranger) { return stranger.get() == link; });
}

void Lobby::close() {
  std::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (const auto& stranger : std::exchange(strangers_, {})) stranger->close();
}

}  // namespace troupe::apps
