#include "gpu/collective/gloo/gloo_backend.hpp"

#include <csignal>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/gloo/algorithms.hpp"
#include "gpu/collective/gloo/mesh.hpp"

namespace troupe::gpu {
namespace {

class GlooMember final : public BlockingMember {
 public:
  explicit GlooMember(std::unique_ptr<Mesh> mesh) : mesh_(std::move(mesh)), algorithms_(*mesh_) {}

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

void ignore_broken_pipes() {
  struct sigaction chosen {};
  if (sigaction(SIGPIPE, nullptr, &chosen) == 0 && chosen.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

core::Result<std::unique_ptr<GlooBackend>> GlooBackend::open(Rendezvous& rendezvous,
                                                             const GlooOptions& options) {
  ignore_broken_pipes();
  auto device = TRY(open_gloo_device(options));
  return std::unique_ptr<GlooBackend>(new GlooBackend(rendezvous, std::move(device)));
}

core::Result<std::unique_ptr<Group>> GlooBackend::create_group(GroupOptions options) {
  auto mesh = TRY(Mesh::connect(device_, options, rendezvous_));
  return make_blocking_group(std::make_unique<GlooMember>(std::move(mesh)));
}

}  // namespace troupe::gpu
