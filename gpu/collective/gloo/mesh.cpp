// The one file that includes Gloo. What the library throws is caught here.
#include "gpu/collective/gloo/mesh.hpp"

#include <gloo/context.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpu/collective/operations.hpp"

namespace troupe::gpu {

struct GlooDevice {
  std::shared_ptr<gloo::transport::Device> device;  // Gloo's contexts share it
};

namespace {

using core::Errc;
using core::Error;
using Clock = std::chrono::steady_clock;
using UnboundBuffer = gloo::transport::UnboundBuffer;

/// Gloo's view of a rendezvous. Gloo's interface knows no other way to fail than to throw.
class RendezvousStore final : public gloo::rendezvous::Store {
 public:
  RendezvousStore(Rendezvous& rendezvous, std::string prefix, std::chrono::nanoseconds deadline)
      : rendezvous_(rendezvous), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const auto done = rendezvous_.set(prefix_ + key, {data.begin(), data.end()});
    if (!done) throw std::runtime_error(done.error().message);
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = rendezvous_.get(prefix_ + key, deadline_);
    if (!value) throw std::runtime_error(value.error().message);
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  Rendezvous& rendezvous_;
  std::string prefix_;
  std::chrono::nanoseconds deadline_;
};

std::chrono::milliseconds until(Clock::time_point give_up) {
  // Zero would mean for ever.
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(give_up - Clock::now()),
                  std::chrono::milliseconds(1));
}

class GlooMesh final : public Mesh {
 public:
  GlooMesh(std::shared_ptr<GlooDevice> device, GroupOptions group, int index,
           std::shared_ptr<gloo::rendezvous::Context> context)
      : device_(std::move(device)), group_(std::move(group)), index_(index), context_(std::move(context)) {}

  const GroupOptions& group() const override { return group_; }
  int index() const override { return index_; }

  core::Result<void> exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                              const OperationDeadline& deadline) override;

  Error fail(Error error) override {
    std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    failure_ = std::move(error);
    for (UnboundBuffer* buffer : waited_for_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
    return *failure_;
  }

  std::optional<Error> failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  class Pending;
  Error error_of(const OperationDeadline& deadline, int peer, const std::string& text);

  const std::shared_ptr<GlooDevice> device_;  // the back-end and its other meshes hold it too
  const GroupOptions group_;
  const int index_;
  const std::shared_ptr<gloo::rendezvous::Context> context_;  // Gloo wants it shared
  mutable std::mutex mutex_;                                  // guards failure_ and waited_for_
  std::optional<Error> failure_;
  std::set<UnboundBuffer*> waited_for_;
};

/// One transfer on its way; known to fail() as long as it lives.
class GlooMesh::Pending {
 public:
  Pending(GlooMesh& mesh, const Transfer& transfer)
      : mesh_(mesh),
        peer_(transfer.peer),
        buffer_(mesh.context_->createUnboundBuffer(transfer.data, transfer.bytes)) {
    std::lock_guard lock(mesh_.mutex_);
    mesh_.waited_for_.insert(buffer_.get());
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    std::lock_guard lock(mesh_.mutex_);
    mesh_.waited_for_.erase(buffer_.get());
  }

  int peer() const { return peer_; }
  UnboundBuffer& buffer() { return *buffer_; }

 private:
  GlooMesh& mesh_;
  int peer_;
  std::unique_ptr<UnboundBuffer> buffer_;
};

core::Result<void> GlooMesh::exchange(std::span<const Transfer> receives, std::span<const Transfer> sends,
                                      const OperationDeadline& deadline) {
  std::vector<std::unique_ptr<Pending>> incoming;
  std::vector<std::unique_ptr<Pending>> outgoing;
  int peer = index_;
  std::string thrown;
  try {
    for (const Transfer& transfer : receives) {
      if (transfer.bytes == 0) continue;
      peer = transfer.peer;
      incoming.push_back(std::make_unique<Pending>(*this, transfer));
      incoming.back()->buffer().recv(peer, transfer.slot);
    }
    for (const Transfer& transfer : sends) {
      if (transfer.bytes == 0) continue;
      peer = transfer.peer;
      outgoing.push_back(std::make_unique<Pending>(*this, transfer));
      outgoing.back()->buffer().send(peer, transfer.slot);
    }
    // Buffers that fail() came too early to see are not waited for.
    bool going_on = !failure().has_value();
    for (std::size_t i = 0; going_on && i < incoming.size(); ++i) {
      peer = incoming[i]->peer();
      going_on = incoming[i]->buffer().waitRecv(until(deadline.give_up));
    }
    for (std::size_t i = 0; going_on && i < outgoing.size(); ++i) {
      peer = outgoing[i]->peer();
      going_on = outgoing[i]->buffer().waitSend(until(deadline.give_up));
    }
    if (going_on) return {};
  } catch (const std::exception& error) {
    thrown = error.what();
  }
  const Error error = fail(error_of(deadline, peer, thrown));
  // So that members which wait for this one end as well.
  try {
    context_->closeConnections();
  } catch (const std::exception&) {  // NOLINT: they are closed then
  }
  return tl::unexpected(error);
}

Error GlooMesh::error_of(const OperationDeadline& deadline, int peer, const std::string& text) {
  const core::Rank rank = group_.members[static_cast<std::size_t>(peer)];
  // Gloo has one type for all its troubles; the clock and two of its words tell a deadline.
  if (Clock::now() >= deadline.give_up || text.find("Timed out") != std::string::npos) {
    return {Errc::timeout,
            fmt::format("group '{}': {}: no sign of rank {}", group_.name, deadline.passed(), rank.value)};
  }
  return {
      Errc::peer_lost,
      fmt::format("group '{}': {}: lost the connection to rank {} ({}); abort, and make a new group in the "
                  "next epoch",
                  group_.name, deadline.what, rank.value, text)};
}

}  // namespace

core::Result<std::shared_ptr<GlooDevice>> open_gloo_device(const GlooOptions& options) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.interface.empty() ? options.host : "";
  attributes.iface = options.interface;
  try {
    return std::make_shared<GlooDevice>(GlooDevice{gloo::transport::tcp::CreateDevice(attributes)});
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
  const auto give_up = Clock::now() + group.deadline;
  const auto prefix = fmt::format("{}/{}/{}/gloo/", group.job, group.epoch.value, group.name);
  RendezvousStore store(rendezvous, prefix, group.deadline);
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(index, static_cast<int>(group.members.size()));
    context->setTimeout(until(give_up));
    if (group.members.size() > 1) context->connectFullMesh(store, device->device);
    return std::make_unique<GlooMesh>(std::move(device), group, index, std::move(context));
  } catch (const std::exception& error) {
    return core::fail(Clock::now() >= give_up ? Errc::timeout : Errc::peer_lost,
                      "group '{}': rank {} could not connect to the other members within {} ms: {}",
                      group.name, group.self.value,
                      std::chrono::duration_cast<std::chrono::milliseconds>(group.deadline).count(),
                      error.what());
  }
}

}  // namespace troupe::gpu
