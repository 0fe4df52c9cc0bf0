#include "gpu/collective/tcp/mesh.hpp"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/tcp/introduction.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Error;
using core::Result;
using posix::Descriptor;
using Clock = std::chrono::steady_clock;

// A thread that waits looks for so long before it sleeps: waking one up takes about as long.
constexpr auto kSpin = std::chrono::microseconds(50);
// How long a member that ends the group goes on with what it was sending.
constexpr auto kLastWords = std::chrono::milliseconds(50);
// With more members than this, the system says which of them to look at.
constexpr std::size_t kFewMembers = 9;

}  // namespace

class Mesh::Posted final : public PostedTransfer {
 public:
  Posted(Mesh& mesh, PassagePtr passage) : mesh_(mesh), passage_(std::move(passage)) {}

  Result<int> wait(const OperationDeadline& deadline) override {
    TRY(mesh_.wait({&passage_, 1}, deadline));
    return passage_->peer;
  }

 private:
  Mesh& mesh_;
  const PassagePtr passage_;
};

Result<std::unique_ptr<Mesh>> Mesh::connect(std::shared_ptr<TcpHub> hub, const GroupOptions& group,
                                            Rendezvous& rendezvous, MovedBy moved_by) {
  const int index = TRY(index_of_self(group));
  std::vector<Introduced> introduced(1);
  if (group.members.size() > 1) introduced = TRY(introduce(group, hub->own(), hub->key(), rendezvous));
  Descriptor events(::epoll_create1(EPOLL_CLOEXEC));
  bool is_well = events.is_open();
  std::vector<std::unique_ptr<Connection>> connections(introduced.size());
  for (std::size_t i = 0; i < introduced.size(); ++i) {
    if (!introduced[i].socket.is_open()) continue;
    connections[i] = std::make_unique<Connection>(std::move(introduced[i].socket), static_cast<int>(i),
                                                  std::move(introduced[i].where));
    epoll_event entry{.events = EPOLLIN, .data = {.ptr = connections[i].get()}};
    is_well &= ::epoll_ctl(events.get(), EPOLL_CTL_ADD, connections[i]->descriptor(), &entry) == 0;
  }
  if (!is_well) {
    return core::fail(Errc::io,
                      "group '{}': rank {} cannot watch its connections: {}; raise its limit of open "
                      "files (ulimit -n)",
                      group.name, group.self.value, std::strerror(errno));
  }
  return std::unique_ptr<Mesh>(
      new Mesh(std::move(hub), group, index, moved_by, std::move(events), std::move(connections)));
}

Mesh::Mesh(std::shared_ptr<TcpHub> hub, GroupOptions group, int index, MovedBy moved_by, Descriptor events,
           std::vector<std::unique_ptr<Connection>> connections)
    : hub_(std::move(hub)),
      group_(std::move(group)),
      index_(index),
      moved_by_(moved_by),
      events_(std::move(events)),
      connections_(std::move(connections)) {
  inbox_.agreement = Agreement(group_.members, index_);
  if (moved_by_ == MovedBy::hub) hub_->add(events_.get(), *this);
}

Mesh::~Mesh() {
  if (moved_by_ == MovedBy::hub) hub_->remove(events_.get());
  const Lock lock(mutex_);
  if (failure_) return;
  const auto give_up = Clock::now() + std::chrono::seconds(1);
  for (const auto& connection : connections_) {
    if (connection && !connection->is_gone) connection->finish(give_up);
  }
}

Result<void> Mesh::begin_operation(std::uint64_t slot, const Operation& operation,
                                   const OperationDeadline& deadline) {
  const Lock lock(mutex_);
  doing_ = deadline.what();
  inbox_.agreement.begin(slot, operation);
  check_agreement();
  if (failure_) return tl::unexpected(*failure_);
  return {};
}

void Mesh::check_agreement() {
  if (failure_ || !inbox_.agreement.found()) return;
  fail_locked({Errc::mismatch, fmt::format("group '{}': {}", group_.name, *inbox_.agreement.found()), {}});
}

Result<void> Mesh::exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                            const OperationDeadline& deadline) {
  std::vector<PassagePtr> passages;
  TRY(post(receives, sends, passages));
  return wait(passages, deadline);
}

Result<void> Mesh::post(std::span<const Transfer> receives, std::span<const Transfer> sends,
                        std::vector<PassagePtr>& into) {
  const Lock lock(mutex_);
  for (const Transfer& transfer : receives) TRY(begin(transfer, false, into));
  for (const Transfer& transfer : sends) TRY(begin(transfer, true, into));
  for (const std::span<const Transfer> posted : {sends, receives}) {
    for (const Transfer& transfer : posted) {
      if (transfer.peer == kAnyMember || (transfer.bytes == 0 && transfer.words == nullptr)) continue;
      Connection& connection = *connections_[transfer.peer];
      if (connection.is_gone || connection.is_blocked || !connection.has_output()) continue;
      if (const auto moved = connection.write(); !moved) lose(connection, moved.error());
      if (failure_) return tl::unexpected(*failure_);
      if (moved_by_ == MovedBy::hub) block_on_output(connection);
    }
  }
  return {};
}

Result<void> Mesh::begin(const Transfer& transfer, bool sends, std::vector<PassagePtr>& into) {
  if (transfer.words != nullptr) {
    auto& connection = *connections_[transfer.peer];
    if (!connection.is_gone) connection.say(transfer.slot, *transfer.words);
  }
  if (transfer.bytes == 0) return {};
  TRY(check_usable(transfer.peer));
  auto passage = std::make_shared<Passage>(Passage{.sends = sends,
                                                   .peer = transfer.peer,
                                                   .slot = transfer.slot,
                                                   .data = transfer.data,
                                                   .bytes = transfer.bytes,
                                                   .is_any = transfer.peer == kAnyMember});
  into.push_back(passage);
  const auto connection_to = [&](int peer) -> Connection& { return *connections_[peer]; };
  if (sends) {
    connection_to(transfer.peer).send(std::move(passage));
    return {};
  }
  const EarlyMessagePtr arrival = inbox_.collect(passage, static_cast<int>(connections_.size()));
  if (!passage->is_any || arrival) connection_to(passage->peer).expect();
  if (!arrival) return {};
  if (arrival->bytes == passage->bytes) {
    connection_to(passage->peer).settle(*arrival, passage);
    return {};
  }
  lose(connection_to(passage->peer),
       {Errc::mismatch,
        fmt::format("it sent {} bytes where this member posted {}", arrival->bytes, passage->bytes),
        {}});
  return tl::unexpected(*failure_);
}

/// The mesh's failure, or that of a member who is gone but needed.
Result<void> Mesh::check_usable(int peer) {
  if (failure_) return tl::unexpected(*failure_);
  const auto is_there = [](const auto& one) { return one && !one->is_gone; };
  if (peer == kAnyMember) {
    if (std::ranges::any_of(connections_, is_there)) return {};
    return tl::unexpected(fail_locked(nobody_left()));
  }
  const auto& connection = connections_[peer];
  if (is_there(connection)) return {};
  return tl::unexpected(fail_locked(lost(peer, {Errc::peer_lost, "it was closed", {}})));
}

Result<void> Mesh::wait(std::span<const PassagePtr> passages, const OperationDeadline& deadline) {
  Lock lock(mutex_);
  doing_ = deadline.what();
  auto spin_until = Clock::now() + kSpin;
  for (std::size_t next = 0;;) {
    while (next < passages.size() && passages[next]->done) ++next;
    // What has arrived may belong to another operation.
    if (next == passages.size() && !inbox_.agreement.found()) return {};
    if (failure_) return tl::unexpected(*failure_);
    const bool may_look = Clock::now() < spin_until;
    if (driven_ || (moved_by_ == MovedBy::hub && !may_look)) {
      const auto left = std::min(deadline.left(), posix::Countdown::kLook);
      if (left == left.zero()) return tl::unexpected(fail_locked(late(deadline, passages)));
      ++followers_;
      changed_.wait_for(lock, left);
      --followers_;
      continue;
    }
    driven_ = true;
    bool moved = move_needed();
    if (!moved && may_look) {
      lock.unlock();
      ::sched_yield();
      lock.lock();
    } else if (!moved) {
      const auto left = std::min(deadline.left(), posix::Countdown::kLook);
      if (left == left.zero()) fail_locked(late(deadline, passages));
      moved =
          move_what_can(static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()), &lock);
    }
    driven_ = false;
    if (moved) spin_until = Clock::now() + kSpin;
    if (followers_ > 0) changed_.notify_all();
  }
}

/// Looks at once at all that are needed. True if anything moved.
bool Mesh::move_needed() {
  if (connections_.size() > kFewMembers) return move_what_can(0, nullptr);
  bool moved = false;
  for (const auto& connection : connections_) {
    if (connection && (connection->is_needed() || connection->has_output())) moved |= move_one(*connection);
  }
  return moved;
}

bool Mesh::move_one(Connection& connection) {
  bool moved = false;
  const auto look_at = [&](const Result<bool>& done) {
    if (!done) return lose(connection, done.error());
    moved |= *done;
  };
  const auto may = [&] { return !failure_ && !connection.is_gone; };
  if (may() && connection.has_output()) look_at(connection.write());
  if (may()) look_at(connection.read(inbox_));
  check_agreement();
  return moved || failure_;
}

/// Waits for so long until anything can move, without the lock if there is one, and moves it.
bool Mesh::move_what_can(int milliseconds, Lock* lock) {
  if (failure_) return true;
  for (const auto& connection : connections_) {
    if (connection && !connection->is_gone) block_on_output(*connection);
  }
  std::array<epoll_event, 64> happened;
  if (lock != nullptr) lock->unlock();
  const int count =
      ::epoll_wait(events_.get(), happened.data(), static_cast<int>(happened.size()), milliseconds);
  if (lock != nullptr) lock->lock();
  bool moved = false;
  for (int i = 0; i < count; ++i)
    moved |= move_one(*static_cast<Connection*>(happened[static_cast<std::size_t>(i)].data.ptr));
  return moved;
}

/// Has the system say when a connection can be written on which something is to be written.
void Mesh::block_on_output(Connection& connection) {
  if (connection.is_gone || connection.is_blocked == connection.has_output()) return;
  connection.is_blocked = connection.has_output();
  epoll_event entry{.events = connection.is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN,
                    .data = {.ptr = &connection}};
  CHECK(::epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.descriptor(), &entry) == 0,
        "the connection was added");
}

void Mesh::move() {
  const Lock lock(mutex_);
  while (move_what_can(0, nullptr) && !failure_) {
  }
  if (followers_ > 0) changed_.notify_all();
}

Result<std::unique_ptr<PostedTransfer>> Mesh::post_send(const Transfer& transfer) {
  std::vector<PassagePtr> posted;
  TRY(post({}, {&transfer, 1}, posted));
  return std::make_unique<Posted>(*this, std::move(posted.front()));
}

Result<std::unique_ptr<PostedTransfer>> Mesh::post_receive(const Transfer& transfer) {
  std::vector<PassagePtr> posted;
  TRY(post({&transfer, 1}, {}, posted));
  return std::make_unique<Posted>(*this, std::move(posted.front()));
}

/// A member that is gone may have said why, or another one knows: what has arrived is read first.
void Mesh::hear_last_words(Connection& gone, Error& reason) {
  for (const auto& connection : connections_) {
    if (!connection || (connection.get() != &gone && connection->is_gone)) continue;
    auto read = connection->read(inbox_);
    while (read && *read) read = connection->read(inbox_);
    if (read) continue;
    if (connection.get() != &gone) {
      lose(*connection, std::move(read).error());
    } else if (gone.has_parted()) {
      reason = std::move(read).error();
    }
  }
  check_agreement();
}

/// A connection is broken, or the other member has ended the group or violates what was agreed.
void Mesh::lose(Connection& connection, Error reason) {
  if (reason.code == Errc::peer_lost && !connection.has_parted() && !connection.is_gone) {
    connection.is_gone = true;
    hear_last_words(connection, reason);
    if (failure_) return;
  }
  const int peer = connection.peer();
  const core::Rank rank = group_.members[static_cast<std::size_t>(peer)];
  // A disagreement explains whatever else does not fit.
  check_agreement();
  if (failure_) return;
  if (reason.code == Errc::mismatch || reason.code == Errc::corrupt) {
    if (!connection.has_parted()) {
      fail_locked(
          {reason.code,
           fmt::format("group '{}': {}: of rank {}: {}; do all ranks run the same build, with the same "
                       "operations in the same order?",
                       group_.name, doing_, rank.value, reason.message),
           {rank}});
      return;
    }
  }
  connection.is_gone = true;
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection.descriptor(), nullptr);
  // A member that gave up may have waited for one that waits itself: this concerns only those who need it.
  const bool ends_all = connection.has_parted() && reason.code != Errc::timeout;
  if (ends_all || (connection.is_needed() && connection.has_parted())) {
    fail_locked({reason.code, fmt::format("rank {} has ended the group: {}", rank.value, reason.message),
                 reason.missing});
  } else if (connection.is_needed()) {
    fail_locked(lost(peer, reason));
  } else if (inbox_.waits_for_anybody() &&
             std::ranges::none_of(connections_, [](const auto& one) { return one && !one->is_gone; })) {
    fail_locked(nobody_left());
  }
}

Error Mesh::fail(Error error) {
  const Lock lock(mutex_);
  return fail_locked(std::move(error));
}

Error Mesh::fail_locked(Error error) {
  if (failure_) return *failure_;
  failure_ = std::move(error);
  // What differs is to be told, also to those to whom much is on the way; its memory is still there.
  const auto give_up = Clock::now() + kLastWords;
  for (const auto& connection : connections_) {
    if (connection && failure_->code == Errc::mismatch) connection->end_frame(give_up);
    if (connection) connection->part(*failure_);
  }
  changed_.notify_all();
  return *failure_;
}

std::optional<Error> Mesh::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

/// Names all that owe something, since each of them may be the reason.
Error Mesh::late(const OperationDeadline& deadline, std::span<const PassagePtr> passages) const {
  std::vector<core::Rank> silent;
  for (std::size_t peer = 0; peer < group_.members.size(); ++peer) {
    const auto is_owed = [&](const auto& one) { return !one->done && one->peer == static_cast<int>(peer); };
    if (std::ranges::any_of(passages, is_owed)) silent.push_back(group_.members[peer]);
  }
  if (silent.empty())
    return {Errc::timeout, fmt::format("group '{}': {}: nobody sent it", group_.name, deadline.passed()), {}};
  std::string who;
  for (const core::Rank rank : silent) who += fmt::format("{}rank {}", who.empty() ? "" : ", ", rank.value);
  return {Errc::timeout, fmt::format("group '{}': {}: no sign of {}", group_.name, deadline.passed(), who),
          std::move(silent)};
}

Error Mesh::lost(int peer, const Error& reason) const {
  const auto absence = std::chrono::duration<double>(hub_->absence()).count();
  if (absence > 0) {
    return {Errc::peer_lost,
            fmt::format(
                "group '{}': {}: this process did not run for {:.3g} s (it was stopped, or its host was), "
                "and the others have not waited for it",
                group_.name, doing_, absence),
            {}};
  }
  const core::Rank rank = group_.members[static_cast<std::size_t>(peer)];
  return {
      Errc::peer_lost,
      fmt::format("group '{}': {}: lost the connection to rank {} at {} ({}); abort, and make a new group "
                  "in the next epoch",
                  group_.name, doing_, rank.value, connections_[peer]->where(), reason.message),
      {rank}};
}

Error Mesh::nobody_left() const {
  return {Errc::peer_lost, fmt::format("group '{}': {}: no other rank is left", group_.name, doing_), {}};
}

}  // namespace troupe::gpu
