#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "actors/world/own_address.hpp"
#include "apps/troupe/launch/nodes/follower.hpp"
#include "core/errors.hpp"

// How a Follower finds the launcher of node 0, at first and after it was lost.

namespace troupe::apps {

using asio::ip::tcp;
using Places = std::vector<tcp::endpoint>;

namespace {

constexpr std::chrono::milliseconds kLookAgainAfter{200};
constexpr std::chrono::seconds kConnectPatience{5};
constexpr std::chrono::seconds kBetweenLines{30};

/// Blocks. Asio would resolve in a thread of its own, and this process must have only one.
core::Result<Places> places_of(const Meeting& meeting) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(meeting.host.c_str(), nullptr, &hints, &list);
  if (status != 0) {
    return core::fail(core::Errc::unavailable, "the host {} is not known here: {}", meeting.host,
                      ::gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  Places places;
  for (const auto* at = list; at != nullptr; at = at->ai_next) {
    tcp::endpoint& place = places.emplace_back();
    std::memcpy(place.data(), at->ai_addr, at->ai_addrlen);
    place.resize(at->ai_addrlen);
    place.port(static_cast<unsigned short>(meeting.port));
  }
  return places;
}

}  // namespace

void Follower::look() {
  auto secret = find_secret(source_, actors::process_variables());
  if (!secret) return end(2, secret.error().message);
  if (!*secret) {
    return not_found(fmt::format("there is no {} yet, which the launcher of node 0 makes",
                                 name_of_secret(source_, actors::process_variables())));
  }
  // A launcher in another's place may have made another secret.
  secret_ = **secret;
  auto places = places_of(job_.meeting);
  if (!places) return not_found(places.error().message);
  try_next(std::make_shared<Places>(std::move(*places)), 0);
}

void Follower::try_next(std::shared_ptr<Places> places, std::size_t at) {
  std::error_code ignored;
  trying_.close(ignored);
  clock_.cancel(again_);
  // What waits for an attempt that was given up finds that its socket is closed.
  again_ = clock_.arm(kConnectPatience, [this] {
    std::error_code closed;
    trying_.close(closed);
  });
  trying_.async_connect((*places)[at], [this, places, at](const std::error_code& error) {
    if (state_ != State::looking) return;
    clock_.cancel(std::exchange(again_, 0));
    if (!error) return met(std::move(trying_), *secret_);
    if (at + 1 < places->size()) return try_next(places, at + 1);
    const bool is_refused = error == asio::error::connection_refused;
    not_found(is_refused ? "nobody listens there" : "no connection: " + error.message(), is_refused);
  });
}

void Follower::met(tcp::socket socket, const actors::JobToken& secret) {
  trying_ = tcp::socket(loop_);
  link_ = std::make_shared<NodeLink>(std::move(socket), secret, actors::SealedFrames::Side::client,
                                     job_.meeting.heartbeat);
  link_->start({.met = [this] { introduce(); },
                .message = [this](NodeMessage message) { receive(std::move(message)); },
                .lost = [this](const std::string& reason) { lost(reason); }});
}

void Follower::introduce() {
  untold_.clear();
  hello_.running.clear();
  hello_.started.clear();
  const auto stays = [this](std::size_t slot) {
    const auto member = actors::declared(member_file(job_, static_cast<int>(slot)));
    return member && member->state != actors::Membership::State::left;
  };
  bool do_all_stay = true;
  for (std::size_t slot = 0; slot < processes_.size(); ++slot) {
    if (!processes_[slot].is_running) continue;
    do_all_stay &= stays(slot);
    hello_.running.push_back(static_cast<int>(slot));
    hello_.started.push_back(processes_[slot].generation);
  }
  if (!do_all_stay) hello_.running.clear();
  if (!do_all_stay) hello_.started.clear();
  hello_.free_ports.clear();
  for (const auto& [number, port] : ports_) hello_.free_ports.push_back(number);
  link_->send(hello_);
}

void Follower::not_found(const std::string& why, bool is_refused) {
  if (!job_.id.empty() && is_refused && !job_.has_journal) {
    return end(1, fmt::format("job {} ends here with exit code 1: {} is gone", job_.id, leader()));
  }
  const auto now = clock_.now();
  if (now >= give_up_at_) {
    return end(1, fmt::format("{} was not found within {:.3g} s: {}", leader(),
                              std::chrono::duration<double>(job_.meeting.patience).count(), why));
  }
  if (now >= say_at_) {
    say_at_ = now + kBetweenLines;
    const bool is_loopback = actors::is_loopback(job_.meeting.host);
    terminal_.say(fmt::format("waiting for {}, for at most {:.0f} s more: {}{}", leader(),
                              std::chrono::duration<double>(give_up_at_ - now).count(), why,
                              is_loopback ? "; that is on this host: --rdzv-endpoint names another" : ""));
  }
  look_again_soon();
}

void Follower::look_again_soon() {
  clock_.cancel(again_);
  again_ = clock_.arm(kLookAgainAfter, [this] { look(); });
}

}  // namespace troupe::apps
