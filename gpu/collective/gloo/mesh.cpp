// The only file that includes Gloo. Exceptions of the library are caught here.
#include "gpu/collective/gloo/mesh.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/gloo/deadline_keeper.hpp"
#include "gpu/collective/gloo/introduction.hpp"
#include "gpu/collective/operations.hpp"

namespace troupe::gpu {

namespace tcp = gloo::transport::tcp;

struct GlooDevice {
  GlooDevice(std::shared_ptr<tcp::Device> of_gloo, const SocketAddress& here)
      : device(std::move(of_gloo)), own(here) {}

  std::shared_ptr<tcp::Device> device;  // shared with Gloo's contexts
  SocketAddress own;                    ///< where other members reach this one
  DeadlineKeeper deadlines;             ///< of the transfers of all meshes
};

namespace {

using core::Errc;
using core::Error;
using posix::Descriptor;
using UnboundBuffer = gloo::transport::UnboundBuffer;

// Nothing is ever sent here; see GlooMesh::watch(). Operations use other top bytes.
constexpr std::uint64_t kWatchSlot = std::uint64_t{0x82} << 56;
// Gloo adds it to the clock, so it must not be the largest possible duration.
constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 10);

bool is_same(const SocketAddress& one, const SocketAddress& other) {
  // Without bytes it is not an address.
  return one.bytes > 0 && one.bytes == other.bytes &&
         std::memcmp(&one.address, &other.address, one.bytes) == 0;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);
SocketAddress address_of(int descriptor, NameOf name_of) {
  SocketAddress found{.bytes = sizeof(sockaddr_storage)};
  if (name_of(descriptor, reinterpret_cast<sockaddr*>(&found.address), &found.bytes) != 0) found.bytes = 0;
  return found;
}

/// This process's descriptor for the other end of a connection; -1 if another process has it.
int other_end_of(const Descriptor& connection) {
  const SocketAddress here = address_of(connection.get(), getsockname);
  const SocketAddress there = address_of(connection.get(), getpeername);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    if (is_same(address_of(descriptor, getsockname), there) &&
        is_same(address_of(descriptor, getpeername), here)) {
      return descriptor;
    }
  }
  return -1;
}

/// Gives a Gloo pair an existing connection. Gloo's own way to connect accepts the first caller at its port
/// as the peer, without verification. So the pair connects to this function, and its descriptor is then
/// redirected to the other connection. Throws like Gloo.
void hand_over(tcp::Device& device, gloo::transport::Pair& pair, Descriptor connection) {
  const auto require = [](bool is_well, const char* what) {
    if (!is_well) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  };
  const int without_delay = 1;
  require(setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &without_delay, sizeof without_delay) == 0,
          "TCP_NODELAY");
  SocketAddress own{.bytes = sizeof(sockaddr_in)};
  auto* const loopback = reinterpret_cast<sockaddr_in*>(&own.address);
  loopback->sin_family = AF_INET;
  loopback->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Descriptor door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(bind(door.get(), reinterpret_cast<sockaddr*>(loopback), own.bytes) == 0, "bind");
  require(listen(door.get(), SOMAXCONN) == 0, "listen");
  pair.connect(tcp::Address(address_of(door.get(), getsockname).address).bytes());
  // It stays open until the pair no longer uses it; otherwise the pair would see its peer leave.
  Descriptor caller;
  int own_end = -1;
  while (own_end < 0) {
    caller = Descriptor(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    require(caller.is_open() || errno == ECONNABORTED || errno == EINTR, "accept");
    // It may be a stranger's.
    if (caller.is_open()) own_end = other_end_of(caller);
  }
  require(dup3(connection.get(), own_end, O_CLOEXEC) == own_end, "dup3");
  // What Gloo had registered was removed along with the previous socket.
  device.registerDescriptor(own_end, EPOLLIN, dynamic_cast<tcp::Handler*>(&pair));
}

std::string peer_of(const Descriptor& connection) {
  const SocketAddress there = address_of(connection.get(), getpeername);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const bool is_known =
      getnameinfo(reinterpret_cast<const sockaddr*>(&there.address), there.bytes, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) == 0;
  return is_known ? fmt::format("{} port {}", host.data(), port.data()) : "an unknown address";
}

/// What Gloo says, without its line of source, and without the address, which is that of the own door.
std::string without_places(std::string_view text) {
  if (text.starts_with('[')) text.remove_prefix(std::min(text.find(']'), text.size() - 1) + 1);
  text = text.substr(0, text.find('['));
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return std::string(text.empty() ? "it broke" : text);
}

class GlooMesh final : public Mesh {
 public:
  /// `peers`: where each member was reached, for people.
  GlooMesh(std::shared_ptr<GlooDevice> device, GroupOptions group, int index, std::vector<std::string> peers,
           std::shared_ptr<gloo::transport::Context> context)
      : device_(std::move(device)),
        group_(std::move(group)),
        index_(index),
        peers_(std::move(peers)),
        context_(std::move(context)),
        watcher_([this] { watch(); }) {}
  ~GlooMesh() override {
    {
      std::lock_guard lock(mutex_);
      leaving_ = true;
      if (watched_) watched_->abortWaitRecv();
    }
    watcher_.join();
  }

  const GroupOptions& group() const override { return group_; }
  int index() const override { return index_; }

  core::Result<void> exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                              const OperationDeadline& deadline) override;
  core::Result<std::unique_ptr<PostedTransfer>> post_send(const Transfer& transfer) override;
  core::Result<std::unique_ptr<PostedTransfer>> post_receive(const Transfer& transfer) override;
  Error fail(Error error) override;

  std::optional<Error> failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  class Pending;
  class Posted;
  core::Result<std::unique_ptr<PostedTransfer>> post(std::unique_ptr<Pending> pending, std::uint64_t slot);
  Error break_connections(Error error);
  std::vector<int> members_there() const;
  void watch();
  UnboundBuffer* next_watched();
  void break_off_transfers_with(int peer);
  Error late(const OperationDeadline& deadline, int peer) const;
  Error lost(const OperationDeadline& deadline, int peer, const std::string& text) const;

  const std::shared_ptr<GlooDevice> device_;  // shared with the back-end and its other meshes
  const GroupOptions group_;
  const int index_;
  const std::vector<std::string> peers_;
  const std::shared_ptr<gloo::transport::Context> context_;  // Gloo requires it to be shared
  mutable std::mutex mutex_;                                 // guards everything below except the thread
  std::optional<Error> failure_;
  std::set<Pending*> pending_;
  std::set<int> lost_;  ///< members whose connection is broken
  bool leaving_ = false;
  std::byte never_written_{};
  std::unique_ptr<UnboundBuffer> watched_;
  std::thread watcher_;
};

enum class Direction { receive, send };

/// One transfer in flight; known to the mesh as long as it exists.
class GlooMesh::Pending {
 public:
  Pending(GlooMesh& mesh, Direction direction, const Transfer& transfer)
      : mesh_(mesh),
        direction_(direction),
        peer_(transfer.peer),
        buffer_(mesh.context_->createUnboundBuffer(transfer.data, transfer.bytes)) {
    std::lock_guard lock(mesh_.mutex_);
    mesh_.pending_.insert(this);
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    std::lock_guard lock(mesh_.mutex_);
    mesh_.pending_.erase(this);
  }

  int peer() const { return peer_; }

  void post(std::uint64_t slot) {
    if (peer_ == kAnyMember) {
      buffer_->recv(mesh_.members_there(), slot);
    } else if (direction_ == Direction::receive) {
      buffer_->recv(peer_, slot);
    } else {
      buffer_->send(peer_, slot);
    }
  }

  /// Ends this wait, or else the next one. Requires the mesh's mutex, which keeps the transfer alive.
  void break_off() {
    if (direction_ == Direction::receive) {
      buffer_->abortWaitRecv();
    } else {
      buffer_->abortWaitSend();
    }
  }

  /// Whether the transfer completed, and was not aborted before. Throws like Gloo.
  bool wait() {
    if (wait_for(kForEver)) return true;
    if (mesh_.failure()) return false;
    // The connection broke, but possibly after the transfer: a peer that has finished may leave. Gloo does
    // not say which, but a second wait for a completed transfer returns immediately.
    try {
      return wait_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      return false;
    }
  }

 private:
  bool wait_for(std::chrono::milliseconds limit) {
    if (direction_ == Direction::send) return buffer_->waitSend(limit);
    int from = peer_;
    const bool came = buffer_->waitRecv(&from, limit);
    if (came) peer_ = from;
    return came;
  }

  GlooMesh& mesh_;
  const Direction direction_;
  std::atomic<int> peer_;  ///< until it came, perhaps any
  const std::unique_ptr<UnboundBuffer> buffer_;
};

core::Result<void> GlooMesh::exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                                      const OperationDeadline& deadline) {
  std::vector<std::unique_ptr<Pending>> transfers;
  std::atomic<int> peer = index_;
  std::string reason = "it was closed";
  const auto post = [&](Direction direction, const Transfer& transfer) {
    if (transfer.bytes == 0) return;
    peer = transfer.peer;
    transfers.push_back(std::make_unique<Pending>(*this, direction, transfer));
    transfers.back()->post(transfer.slot);
  };
  const DeadlineKeeper::Watch limit(device_->deadlines, deadline.left(), [&] { fail(late(deadline, peer)); });
  try {
    for (const Transfer& transfer : receives) post(Direction::receive, transfer);
    for (const Transfer& transfer : sends) post(Direction::send, transfer);
    // Transfers that fail() ran too early to see are not waited for.
    bool going_on = !failure().has_value();
    for (std::size_t i = 0; going_on && i < transfers.size(); ++i) {
      peer = transfers[i]->peer();
      going_on = transfers[i]->wait();
    }
    if (going_on) return {};
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return tl::unexpected(break_connections(fail(lost(deadline, peer, reason))));
}

/// So that members waiting for this one end as well. Returns the error.
Error GlooMesh::break_connections(Error error) {
  try {
    for (int i = 0; i < context_->size; ++i) {
      if (i != index_) context_->getPair(i)->close();
    }
  } catch (const std::exception&) {  // they are already closed
  }
  return error;
}

class GlooMesh::Posted final : public PostedTransfer {
 public:
  Posted(GlooMesh& mesh, std::unique_ptr<Pending> pending) : mesh_(mesh), pending_(std::move(pending)) {}

  core::Result<int> wait(const OperationDeadline& deadline) override {
    std::string reason = "it was closed";
    const int peer = pending_->peer();
    try {
      const DeadlineKeeper::Watch limit(mesh_.device_->deadlines, deadline.left(),
                                        [&] { mesh_.fail(mesh_.late(deadline, peer)); });
      if (!mesh_.failure() && pending_->wait()) return pending_->peer();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    return tl::unexpected(mesh_.break_connections(mesh_.fail(mesh_.lost(deadline, peer, reason))));
  }

 private:
  GlooMesh& mesh_;
  const std::unique_ptr<Pending> pending_;
};

core::Result<std::unique_ptr<PostedTransfer>> GlooMesh::post_send(const Transfer& transfer) {
  return post(std::make_unique<Pending>(*this, Direction::send, transfer), transfer.slot);
}

core::Result<std::unique_ptr<PostedTransfer>> GlooMesh::post_receive(const Transfer& transfer) {
  return post(std::make_unique<Pending>(*this, Direction::receive, transfer), transfer.slot);
}

core::Result<std::unique_ptr<PostedTransfer>> GlooMesh::post(std::unique_ptr<Pending> pending,
                                                             std::uint64_t slot) {
  if (auto error = failure()) return tl::unexpected(*std::move(error));
  try {
    pending->post(slot);
  } catch (const std::exception& error) {
    const OperationDeadline deadline("a message", std::chrono::seconds(1));
    return tl::unexpected(break_connections(fail(lost(deadline, pending->peer(), error.what()))));
  }
  return std::make_unique<Posted>(*this, std::move(pending));
}

std::vector<int> GlooMesh::members_there() const {
  std::lock_guard lock(mutex_);
  std::vector<int> there;
  for (int i = 0; i < context_->size; ++i) {
    if (i != index_ && !lost_.contains(i)) there.push_back(i);
  }
  return there;
}

Error GlooMesh::fail(Error error) {
  std::lock_guard lock(mutex_);
  if (failure_) return *failure_;
  failure_ = std::move(error);
  for (Pending* pending : pending_) pending->break_off();
  return *failure_;
}

/// Aborts transfers whose connection breaks, until the mesh is destroyed.
///
/// Gloo alone does not: it reports a broken connection to the transfers queued on it, but not to one whose
/// bytes had begun to move, which would wait for its deadline. A receive that is never answered never begins
/// to move, so it is always notified. One such receive is posted to every peer, all into the same buffer. A
/// broken connection refuses new posts; hence whatever was posted before was pending when the watcher learned
/// of the break. A member that leaves cleanly breaks its connections too, and therefore only transfers with
/// that very peer are aborted.
void GlooMesh::watch() {
  pthread_setname_np(pthread_self(), "gloo watch");
  std::vector<int> peers;
  for (int i = 0; i < context_->size; ++i) {
    if (i != index_) peers.push_back(i);
  }
  const auto is_lost = [this](UnboundBuffer& watched, int peer) {
    try {
      watched.recv(peer, kWatchSlot);
      return false;
    } catch (const std::exception&) {
      break_off_transfers_with(peer);
      return true;
    }
  };
  while (!peers.empty()) {
    UnboundBuffer* const watched = next_watched();
    if (watched == nullptr) return;
    std::erase_if(peers, [&](int peer) { return is_lost(*watched, peer); });
    try {
      if (!watched->waitRecv(kForEver)) return;
    } catch (const std::exception&) {  // posting again shows whose connection it was
    }
  }
}

/// A buffer that has thrown once always throws, so each round has its own. None when the mesh is destroyed.
UnboundBuffer* GlooMesh::next_watched() {
  std::lock_guard lock(mutex_);
  if (leaving_) return nullptr;
  watched_ = context_->createUnboundBuffer(&never_written_, sizeof never_written_);
  return watched_.get();
}

void GlooMesh::break_off_transfers_with(int peer) {
  std::lock_guard lock(mutex_);
  lost_.insert(peer);
  for (Pending* pending : pending_) {
    if (pending->peer() == peer) pending->break_off();
  }
}

Error GlooMesh::late(const OperationDeadline& deadline, int peer) const {
  if (peer == kAnyMember)
    return {Errc::timeout, fmt::format("group '{}': {}: nobody sent it", group_.name, deadline.passed())};
  const core::Rank rank = group_.members[static_cast<std::size_t>(peer)];
  return {Errc::timeout,
          fmt::format("group '{}': {}: no sign of rank {}", group_.name, deadline.passed(), rank.value),
          {rank}};
}

Error GlooMesh::lost(const OperationDeadline& deadline, int peer, const std::string& text) const {
  const auto absence = std::chrono::duration<double>(device_->deadlines.absence()).count();
  if (absence > 0) {
    return {Errc::peer_lost,
            fmt::format(
                "group '{}': {}: this process did not run for {:.3g} s (it was stopped, or its host was), "
                "and the others have not waited for it",
                group_.name, deadline.what, absence)};
  }
  if (peer == kAnyMember)
    return {Errc::peer_lost, fmt::format("group '{}': {}: no other rank is left ({})", group_.name,
                                         deadline.what, without_places(text))};
  const core::Rank rank = group_.members[static_cast<std::size_t>(peer)];
  return {
      Errc::peer_lost,
      fmt::format("group '{}': {}: lost the connection to rank {} at {} ({}); abort, and make a new group in "
                  "the next epoch",
                  group_.name, deadline.what, rank.value, peers_[static_cast<std::size_t>(peer)],
                  without_places(text))};
}

}  // namespace

core::Result<std::shared_ptr<GlooDevice>> open_gloo_device(const GlooOptions& options) {
  tcp::attr attributes;
  attributes.hostname = options.interface.empty() ? options.host : "";
  attributes.iface = options.interface;
  try {
    attributes = tcp::CreateDeviceAttr(attributes);
    const SocketAddress own{attributes.ai_addr, static_cast<socklen_t>(attributes.ai_addrlen)};
    // Each of Gloo's pairs listens until it is given its connection: on the loopback interface's broadcast
    // address, to which nothing can connect.
    sockaddr_in nowhere{};
    nowhere.sin_family = AF_INET;
    nowhere.sin_addr.s_addr = htonl(0x7fffffff);
    std::memcpy(&attributes.ai_addr, &nowhere, sizeof nowhere);
    attributes.ai_addrlen = sizeof nowhere;
    attributes.ai_family = AF_INET;
    return std::make_shared<GlooDevice>(std::make_shared<tcp::Device>(attributes), own);
  } catch (const std::exception& error) {
    return core::fail(Errc::unavailable,
                      "gloo: cannot listen on {} '{}': {}; give an address or interface of this machine",
                      options.interface.empty() ? "host" : "interface",
                      options.interface.empty() ? options.host : options.interface, error.what());
  }
}

core::Result<std::unique_ptr<Mesh>> Mesh::connect(std::shared_ptr<GlooDevice> device,
                                                  const GroupOptions& group, Rendezvous& rendezvous) {
  const int index = TRY(index_of_self(group));
  std::vector<Descriptor> connections;
  if (group.members.size() > 1) connections = TRY(introduce(group, device->own, rendezvous));
  try {
    auto context = device->device->createContext(index, static_cast<int>(group.members.size()));
    std::vector<std::string> peers(connections.size());
    context->setTimeout(std::chrono::ceil<std::chrono::milliseconds>(group.deadline));
    for (int i = 0; i < context->size; ++i) {
      if (i == index) continue;
      auto& connection = connections[static_cast<std::size_t>(i)];
      peers[static_cast<std::size_t>(i)] = peer_of(connection);
      hand_over(*device->device, *context->createPair(i), std::move(connection));
    }
    return std::make_unique<GlooMesh>(std::move(device), group, index, std::move(peers), std::move(context));
  } catch (const std::exception& error) {
    return core::fail(Errc::io, "group '{}': Gloo refuses the connections of rank {}: {}", group.name,
                      group.self.value, error.what());
  }
}

}  // namespace troupe::gpu
