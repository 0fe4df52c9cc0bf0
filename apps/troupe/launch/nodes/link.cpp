#include "apps/troupe/launch/nodes/link.hpp"

#include <fmt/format.h>

#include <asio/buffer.hpp>
#include <asio/write.hpp>
#include <system_error>
#include <utility>

namespace troupe::apps {

namespace {

using Time = std::chrono::steady_clock;

constexpr std::chrono::seconds kClosePatience{2};

/// The address as people write it: IPv4 within IPv6 is IPv4.
std::string text_of(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace

NodeLink::NodeLink(asio::ip::tcp::socket socket, const actors::JobToken& secret,
                   actors::SealedFrames::Side side, Heartbeat heartbeat)
    : socket_(std::move(socket)),
      frames_(secret, side),
      heartbeat_(heartbeat),
      timer_(socket_.get_executor()) {
  std::error_code error;
  const auto peer = socket_.remote_endpoint(error);
  if (!error) peer_address_ = text_of(peer.address());
  const auto own = socket_.local_endpoint(error);
  if (!error) own_address_ = text_of(own.address());
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
}

void NodeLink::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  last_heard_ = last_beat_ = Time::now();
  outgoing_ = frames_.introduction();
  write();
  read();
  beat();
}

void NodeLink::send(const NodeMessage& message) {
  if (!socket_.is_open()) return;
  outgoing_ += frames_.seal(to_text(message));
  write();
}

void NodeLink::read() {
  socket_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](const std::error_code& error, std::size_t bytes) {
                            if (!self->socket_.is_open()) return;
                            if (error) return self->lose("the connection was closed");
                            self->take(bytes);
                          });
}

void NodeLink::take(std::size_t bytes) {
  last_heard_ = Time::now();
  const bool had_met = frames_.has_met();
  frames_.feed({buffer_.data(), bytes});
  for (;;) {
    auto text = frames_.next();
    if (!text) return lose(text.error().message);
    if (!had_met && frames_.has_met() && handlers_.met) std::exchange(handlers_.met, nullptr)();
    if (!socket_.is_open()) return;
    if (!*text) break;
    if ((*text)->empty()) continue;
    auto message = message_from_text(**text);
    if (!message) return lose(message.error().message);
    // The handler may put others in its place.
    if (const auto handler = handlers_.message) handler(std::move(*message));
    if (!socket_.is_open()) return;
  }
  read();
}

void NodeLink::write() {
  if (!being_written_.empty() || outgoing_.empty() || !socket_.is_open()) return;
  being_written_ = std::exchange(outgoing_, {});
  asio::async_write(socket_, asio::buffer(being_written_),
                    [self = shared_from_this()](const std::error_code& error, std::size_t) {
                      self->being_written_.clear();
                      if (!self->socket_.is_open()) return;
                      if (error) return self->lose("the connection was closed");
                      self->write();
                    });
}

void NodeLink::beat() {
  timer_.expires_after(heartbeat_.interval);
  timer_.async_wait([self = shared_from_this()](const std::error_code& error) {
    if (error || !self->socket_.is_open()) return;
    const auto now = Time::now();
    // A launcher that stood still itself cannot say how long the other was silent.
    if (now - self->last_beat_ > 2 * self->heartbeat_.interval + std::chrono::milliseconds(500)) {
      self->last_heard_ = now;
    }
    self->last_beat_ = now;
    if (now - self->last_heard_ > self->heartbeat_.patience) {
      return self->lose(fmt::format("nothing was heard of it for {:.3g} s",
                                    std::chrono::duration<double>(self->heartbeat_.patience).count()));
    }
    if (self->frames_.has_met()) {
      self->outgoing_ += self->frames_.seal("");
      self->write();
    }
    if (self->socket_.is_open()) self->beat();
  });
}

void NodeLink::lose(const std::string& reason) {
  const auto lost = std::move(handlers_.lost);
  close();
  if (lost) lost(reason);
}

void NodeLink::close() {
  handlers_ = {};
  std::error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  if (closed_) std::exchange(closed_, nullptr)();
}

void NodeLink::close_when_taken(std::function<void()> closed) {
  handlers_ = {};
  if (!socket_.is_open()) return closed();
  closed_ = std::move(closed);
  write();
  // The peer closes when it has read all. Were this side to close first, what is on the way to it would take
  // the last frames with it.
  timer_.expires_after(kClosePatience);
  timer_.async_wait([self = shared_from_this()](const std::error_code& error) {
    if (!error) self->close();
  });
}

}  // namespace troupe::apps
