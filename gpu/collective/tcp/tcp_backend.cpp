#include "gpu/collective/tcp/tcp_backend.hpp"

#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/tcp/algorithms.hpp"
#include "gpu/collective/tcp/hub.hpp"
#include "gpu/collective/tcp/mesh.hpp"

namespace troupe::gpu {
namespace {

class TcpMember final : public BlockingMember {
 public:
  explicit TcpMember(std::unique_ptr<Mesh> mesh) : mesh_(std::move(mesh)), algorithms_(*mesh_) {}

  const GroupOptions& group() const override { return mesh_->group(); }
  int index() const override { return mesh_->index(); }
  core::Result<void> run(const Operation& operation, std::uint64_t sequence,
                         const OperationDeadline& deadline) override {
    return algorithms_.run(operation, sequence, deadline);
  }
  core::Error fail(core::Error error) override { return mesh_->fail(std::move(error)); }
  void abort(core::Error reason) override { (void)mesh_->fail(std::move(reason)); }
  std::optional<core::Error> failure() const override { return mesh_->failure(); }

 private:
  std::unique_ptr<Mesh> mesh_;
  MeshAlgorithms algorithms_;
};

}  // namespace

core::Result<std::unique_ptr<TcpBackend>> TcpBackend::open(Rendezvous& rendezvous,
                                                           const TcpOptions& options) {
  auto hub = TRY(TcpHub::open(options));
  return std::unique_ptr<TcpBackend>(new TcpBackend(rendezvous, std::move(hub)));
}

core::Result<std::unique_ptr<Group>> TcpBackend::create_group(GroupOptions options) {
  auto mesh = TRY(Mesh::connect(hub_, options, rendezvous_, Mesh::MovedBy::waiters));
  return make_blocking_group(std::make_unique<TcpMember>(std::move(mesh)));
}

}  // namespace troupe::gpu
