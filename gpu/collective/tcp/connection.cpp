#include "gpu/collective/tcp/connection.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "core/disregard.hpp"
#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Result;

constexpr std::size_t kMostFramesAtOnce = 32;
constexpr std::size_t kMostPartingBytes = 4096;

/// "code ranks...\ntext"
std::string parting_text(const core::Error& reason) {
  std::string ranks;
  for (const core::Rank rank : reason.missing) ranks += fmt::format(" {}", rank.value);
  auto text = fmt::format("{}{}\n{}", static_cast<int>(reason.code), ranks, reason.message);
  return text.substr(0, kMostPartingBytes);
}

core::Error reason_in(std::string_view text) {
  core::Error reason{Errc::peer_lost, "it gave up", {}};
  const auto line = text.substr(0, text.find('\n'));
  const char* at = line.data();
  const char* const end = at + line.size();
  int code = 0;
  const auto read = std::from_chars(at, end, code);
  if (read.ec != std::errc() || line.size() == text.size()) return reason;
  reason.code = static_cast<Errc>(code);
  reason.message = text.substr(line.size() + 1);
  for (at = read.ptr; at != end && *at == ' ';) {
    std::int32_t rank = 0;
    const auto number = std::from_chars(at + 1, end, rank);
    if (number.ec != std::errc()) break;
    reason.missing.push_back({rank});
    at = number.ptr;
  }
  return reason;
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

void Connection::queue(Header header, PassagePtr passage) {
  header.credit = static_cast<std::uint32_t>(std::exchange(owed_, 0));
  const bool has_data = header.kind == Kind::eager || header.kind == Kind::announced;
  Frame frame{header, has_data ? passage->data : nullptr, has_data ? passage->bytes : 0, nullptr, {}};
  frame.passage = std::move(passage);
  out_.push_back(std::move(frame));
}

void Connection::send(PassagePtr passage) {
  ++open_;
  const std::size_t bytes = passage->bytes;
  if (bytes <= kEagerBytes && bytes <= credit_) {
    credit_ -= bytes;
    const std::uint64_t slot = passage->slot;
    return queue({.kind = Kind::eager, .slot = slot, .bytes = bytes}, std::move(passage));
  }
  queue({.kind = Kind::announcement, .slot = passage->slot, .bytes = bytes}, nullptr);
  unanswered_[++announced_] = std::move(passage);
}

void Connection::say(std::uint64_t slot, std::string words) {
  queue_text({.kind = Kind::words, .slot = slot}, std::move(words));
}

void Connection::queue_text(Header header, std::string text) {
  header.credit = static_cast<std::uint32_t>(std::exchange(owed_, 0));
  header.bytes = text.size();
  out_.push_back({header, nullptr, text.size(), nullptr, std::move(text)});
  // Where the text is now: a short one is in the frame itself.
  out_.back().data = reinterpret_cast<const std::byte*>(out_.back().text.data());
}

void Connection::settle(EarlyMessage& arrival, const PassagePtr& passage) {
  if (arrival.announced != 0) {
    answered_[arrival.announced] = passage;
    return queue({.kind = Kind::readiness, .slot = arrival.announced, .bytes = passage->bytes}, nullptr);
  }
  arrival.passage = passage;
  if (!arrival.complete) return;
  std::memcpy(passage->data, arrival.data.get(), arrival.bytes);
  owe(arrival.bytes);
  complete(*passage);
}

void Connection::owe(std::size_t bytes) {
  owed_ += bytes;
  if (owed_ >= kWindow / 4) queue({.kind = Kind::credit}, nullptr);
}

void Connection::complete(Passage& passage) {
  passage.done = true;
  --open_;
}

void Connection::end_frame(std::chrono::steady_clock::time_point give_up) {
  if (out_.empty()) return;
  out_.erase(written_ > 0 ? std::next(out_.begin()) : out_.begin(), out_.end());
  while (has_output() && !is_gone && std::chrono::steady_clock::now() < give_up) {
    const auto moved = write();
    if (!moved) return;
    pollfd entry{descriptor(), POLLOUT, 0};
    if (!*moved) ::poll(&entry, 1, 5);
  }
}

void Connection::part(const core::Error& reason) {
  const bool between_frames = written_ == 0;
  out_.clear();
  if (between_frames && !is_gone) {
    queue_text({.kind = Kind::parting}, parting_text(reason));
    core::disregard(write(), "the group has ended whether the other member hears of it or not");
    out_.clear();
  }
  // What still arrives would be answered by a reset, which may overtake a text that is to be read.
  ::shutdown(descriptor(), reason.code == Errc::mismatch ? SHUT_WR : SHUT_RDWR);
}

void Connection::finish(std::chrono::steady_clock::time_point give_up) {
  using Clock = std::chrono::steady_clock;
  const auto wait_for = [&](short events, int milliseconds) {
    pollfd entry{descriptor(), events, 0};
    ::poll(&entry, 1, milliseconds);
  };
  while (has_output() && Clock::now() < give_up) {
    const auto moved = write();
    if (!moved) return;
    if (!*moved) wait_for(POLLOUT, 10);
  }
  ::shutdown(descriptor(), SHUT_WR);
  // Closing a connection from which not all was read would take back what is still on the way.
  for (int left = 0; ::ioctl(descriptor(), SIOCOUTQ, &left) == 0 && left > 0 && Clock::now() < give_up;) {
    const auto count = ::recv(descriptor(), staged_.data(), staged_.size(), MSG_DONTWAIT);
    if (count < 0 && !would_block()) return;
    if (count <= 0) ::poll(nullptr, 0, 1);
  }
}

Result<bool> Connection::write() {
  if (out_.empty()) return false;
  std::array<iovec, 2 * kMostFramesAtOnce> parts;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t skip = written_;
  const auto add = [&](const void* data, std::size_t size) {
    const std::size_t skipped = std::min(skip, size);
    skip -= skipped;
    size = std::min(size - skipped, kAtOnce - bytes);
    if (size == 0) return;
    parts[count++] = {static_cast<char*>(const_cast<void*>(data)) + skipped, size};
    bytes += size;
  };
  for (const Frame& frame : out_) {
    if (count + 2 > parts.size() || bytes == kAtOnce) break;
    add(&frame.header, sizeof frame.header);
    add(frame.data, frame.bytes);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t moved = ::sendmsg(descriptor(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0) {
    if (would_block()) return false;
    return core::fail(Errc::peer_lost, "{}", std::strerror(errno));
  }
  written_ += static_cast<std::size_t>(moved);
  while (!out_.empty() && written_ >= sizeof(Header) + out_.front().bytes) {
    Frame& frame = out_.front();
    written_ -= sizeof(Header) + frame.bytes;
    if (frame.passage) complete(*frame.passage);
    out_.pop_front();
  }
  return true;
}

Result<bool> Connection::read(Inbox& inbox) {
  const std::size_t direct = std::min(remaining_, kAtOnce);
  std::array<iovec, 2> parts{iovec{target_, direct},
                             iovec{staged_.data() + staged_bytes_, staged_.size() - staged_bytes_}};
  msghdr message{};
  message.msg_iov = direct == 0 ? &parts[1] : parts.data();
  message.msg_iovlen = direct > 0 && direct == remaining_ ? 2 : 1;
  const ssize_t moved = ::recvmsg(descriptor(), &message, MSG_DONTWAIT);
  if (moved == 0) return core::fail(Errc::peer_lost, "it was closed");
  if (moved < 0) {
    if (would_block()) return false;
    return core::fail(Errc::peer_lost, "{}", std::strerror(errno));
  }
  const std::size_t of_frame = std::min(static_cast<std::size_t>(moved), direct);
  staged_bytes_ += static_cast<std::size_t>(moved) - of_frame;
  if (of_frame > 0) {
    target_ += of_frame;
    remaining_ -= of_frame;
    if (remaining_ == 0) TRY(end(inbox));
  }
  TRY(parse(inbox));
  return true;
}

/// Takes frames from what was read beyond the last one.
Result<void> Connection::parse(Inbox& inbox) {
  std::span<const std::byte> left(staged_.data(), staged_bytes_);
  while (remaining_ == 0 && left.size() >= sizeof(Header)) {
    std::memcpy(&header_, left.data(), sizeof header_);
    left = left.subspan(sizeof header_);
    TRY(begin(header_, inbox));
    const std::size_t here = std::min(remaining_, left.size());
    if (here == 0) continue;
    std::memcpy(target_, left.data(), here);
    left = left.subspan(here);
    target_ += here;
    remaining_ -= here;
    if (remaining_ == 0) TRY(end(inbox));
  }
  std::memmove(staged_.data(), left.data(), left.size());
  staged_bytes_ = left.size();
  return {};
}

Result<void> Connection::begin(const Header& header, Inbox& inbox) {
  credit_ = std::min(credit_ + header.credit, kWindow);
  const auto unknown = [&] { return tl::unexpected(not_a_frame()); };
  switch (header.kind) {
    case Kind::eager:
    case Kind::announcement:
      if (header.bytes == 0 || (header.kind == Kind::eager && header.bytes > kEagerBytes)) return unknown();
      return begin_message(header, inbox);
    case Kind::readiness: {
      const auto found = unanswered_.find(header.slot);
      if (found == unanswered_.end()) return unknown();
      PassagePtr passage = std::move(found->second);
      unanswered_.erase(found);
      const std::size_t bytes = passage->bytes;
      queue({.kind = Kind::announced, .slot = header.slot, .bytes = bytes}, std::move(passage));
      return {};
    }
    case Kind::announced: {
      const auto found = answered_.find(header.slot);
      if (found == answered_.end()) return unknown();
      PassagePtr passage = std::move(found->second);
      answered_.erase(found);
      return aim_at(std::move(passage), header.bytes);
    }
    case Kind::credit:
      return {};
    case Kind::parting:
      return begin_text(header, kMostPartingBytes);
    case Kind::words:
      return begin_text(header, inbox.agreement.most_bytes());
  }
  return unknown();
}

Result<void> Connection::begin_text(const Header& header, std::size_t most) {
  if (header.bytes == 0 || header.bytes > most) return tl::unexpected(not_a_frame());
  text_.resize(header.bytes);
  target_ = reinterpret_cast<std::byte*>(text_.data());
  remaining_ = header.bytes;
  return {};
}

core::Error Connection::not_a_frame() const {
  return {Errc::corrupt,
          fmt::format("it sent something that is not a frame (kind {}, {} bytes)",
                      static_cast<int>(header_.kind), header_.bytes),
          {}};
}

Result<void> Connection::begin_message(const Header& header, Inbox& inbox) {
  PassagePtr passage = inbox.claim(peer_, header.slot);
  const bool is_announced = header.kind == Kind::announcement;
  if (is_announced) ++heard_of_;
  if (passage == nullptr) {
    auto arrival = std::make_shared<EarlyMessage>(EarlyMessage{
        .peer = peer_, .slot = header.slot, .bytes = header.bytes, .announced = 0, .data = nullptr});
    if (is_announced) {
      arrival->announced = heard_of_;
    } else {
      arrival->data = std::make_unique_for_overwrite<std::byte[]>(header.bytes);
      target_ = arrival->data.get();
      remaining_ = header.bytes;
      kept_ = arrival;
    }
    inbox.keep(std::move(arrival));
    return {};
  }
  if (passage->is_any) ++open_;
  if (!is_announced) return aim_at(std::move(passage), header.bytes);
  if (passage->bytes != header.bytes) return aim_at(std::move(passage), header.bytes);
  EarlyMessage arrival{.announced = heard_of_};
  settle(arrival, passage);
  return {};
}

Result<void> Connection::aim_at(PassagePtr passage, std::size_t bytes) {
  if (passage->bytes != bytes) {
    return core::fail(Errc::mismatch, "it sent {} bytes where this member posted {}", bytes, passage->bytes);
  }
  target_ = passage->data;
  remaining_ = bytes;
  arriving_ = std::move(passage);
  return {};
}

/// All bytes of a frame are there.
Result<void> Connection::end(Inbox& inbox) {
  if (header_.kind == Kind::parting) {
    has_parted_ = true;
    return tl::unexpected(reason_in(text_));
  }
  if (header_.kind == Kind::words) {
    if (inbox.agreement.hear(peer_, header_.slot, text_)) return {};
    return tl::unexpected(not_a_frame());
  }
  if (header_.kind == Kind::eager && arriving_ != nullptr) owe(header_.bytes);
  if (const PassagePtr passage = std::exchange(arriving_, nullptr)) complete(*passage);
  if (const EarlyMessagePtr arrival = std::exchange(kept_, nullptr)) {
    arrival->complete = true;
    if (arrival->passage != nullptr) settle(*arrival, arrival->passage);
  }
  return {};
}

}  // namespace troupe::gpu
