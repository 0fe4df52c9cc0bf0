#pragma once

#include <sys/socket.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/result.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "posix/countdown.hpp"
#include "posix/descriptor.hpp"

namespace troupe::gpu {

/// An address of this machine in the operating system's format.
struct SocketAddress {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

/// What a hub does for a mesh.
class MovedByHub {
 public:
  virtual ~MovedByHub() = default;
  /// Something may be read or written.
  virtual void move() = 0;
};

/// What the meshes of a process share: where it is reached, and a thread that moves the messages of meshes on
/// which nobody waits. Thread-safe.
class TcpHub {
 public:
  /// Errc::unavailable if the address or interface does not belong to this machine.
  static core::Result<std::shared_ptr<TcpHub>> open(const TcpOptions& options);
  ~TcpHub();
  TcpHub(const TcpHub&) = delete;
  TcpHub& operator=(const TcpHub&) = delete;

  const SocketAddress& own() const { return own_; }
  const std::optional<posix::JobToken>& key() const { return key_; }
  /// For how long this process did not run just before now: peers that have waited for it are not to blame.
  std::chrono::nanoseconds absence();

  /// Until remove(), the thread calls mesh.move() whenever something happens on `events`, an epoll
  /// descriptor.
  void add(int events, MovedByHub& mesh);
  /// Once it returns, the thread no longer calls it.
  void remove(int events);

 private:
  TcpHub(SocketAddress own, std::optional<posix::JobToken> key, posix::Descriptor events,
         posix::Descriptor stop);
  void work();
  void look();

  const SocketAddress own_;
  const std::optional<posix::JobToken> key_;
  const posix::Descriptor events_;
  const posix::Descriptor stop_;
  std::mutex meshes_mutex_;  // guards meshes_, and is held while one is called
  std::map<int, MovedByHub*> meshes_;
  std::mutex mutex_;  // guards what follows
  posix::Countdown::Clock::time_point next_look_ = posix::Countdown::Clock::now();
  std::chrono::nanoseconds absence_{};  ///< the last one
  posix::Countdown::Clock::time_point back_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe::gpu
