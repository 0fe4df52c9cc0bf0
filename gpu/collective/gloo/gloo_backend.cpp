#include "gpu/collective/gloo/gloo_backend.hpp"

#include <csignal>
#include <utility>

#include "gpu/collective/gloo/algorithms.hpp"
#include "gpu/collective/gloo/mesh.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/turnstile.hpp"

namespace troupe::gpu {
namespace {

/// What a group and its tasks on streams share.
struct Membership {
  explicit Membership(std::shared_ptr<Mesh> connections)
      : mesh(std::move(connections)),
        algorithms(*mesh),
        turnstiles(static_cast<int>(mesh->group().members.size())) {}

  std::shared_ptr<Mesh> mesh;
  MeshAlgorithms algorithms;
  Turnstiles turnstiles;
};

core::Result<void> run(Membership& membership, const Operation& operation, Turnstile::Ticket ticket) {
  Mesh& mesh = *membership.mesh;
  const MeshDeadline deadline{.give_up = std::chrono::steady_clock::now() + operation.deadline,
                              .what = fmt::format("{} {}", name_of(operation.kind), ticket)};
  Turnstile& turnstile = membership.turnstiles.of(operation);
  if (!turnstile.wait(ticket, deadline.give_up, [&] { return mesh.failure().has_value(); })) {
    return tl::unexpected(
        mesh.fail({core::Errc::timeout,
                   fmt::format("group '{}': {} did not end before its deadline: an earlier operation of rank "
                               "{} has not run",
                               mesh.group().name, deadline.what, mesh.group().self.value)}));
  }
  if (auto error = mesh.failure()) return tl::unexpected(*std::move(error));
  auto result = membership.algorithms.run(operation, ticket, deadline);
  turnstile.pass();
  return result;
}

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(std::shared_ptr<Mesh> mesh)
      : membership_(std::make_shared<Membership>(std::move(mesh))) {}

  int index() const override { return membership_->mesh->index(); }
  int size() const override { return static_cast<int>(membership_->mesh->group().members.size()); }
  const std::string& name() const override { return membership_->mesh->group().name; }

  core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) override {
    operation = TRY(prepare(std::move(operation), index(), size()));
    const std::string_view label = name_of(operation.kind);
    const TaskCost cost{.bytes_touched = operation.input.bytes + operation.output.bytes};
    auto status = std::make_shared<OperationStatus>();
    const Turnstile::Ticket ticket = membership_->turnstiles.of(operation).take();
    stream->enqueue(label, cost,
                    [membership = membership_, operation = std::move(operation), status, ticket] {
                      status->finish(run(*membership, operation, ticket));
                    });
    return status;
  }

  void abort(core::Error reason) override { (void)membership_->mesh->fail(std::move(reason)); }

 private:
  // Shared with the tasks on streams.
  std::shared_ptr<Membership> membership_;
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
  return std::make_unique<GlooGroup>(TRY(Mesh::connect(device_, options, rendezvous_)));
}

}  // namespace troupe::gpu
