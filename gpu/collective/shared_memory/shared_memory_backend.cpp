#include "gpu/collective/shared_memory/shared_memory_backend.hpp"

#include <utility>

#include "gpu/collective/operations.hpp"
#include "gpu/collective/shared_memory/collectives.hpp"
#include "gpu/collective/turnstile.hpp"

namespace troupe::gpu {
namespace {

/// What a group and its tasks on streams share.
struct Membership {
  explicit Membership(std::shared_ptr<Arena> shared) : arena(std::move(shared)), turnstiles(arena->size()) {}

  std::shared_ptr<Arena> arena;
  Turnstiles turnstiles;
};

core::Result<void> run(Membership& membership, const Operation& operation, Turnstile::Ticket ticket) {
  Arena& arena = *membership.arena;
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(operation.deadline);
  const SharedDeadline deadline{
      .give_up = std::chrono::steady_clock::now() + operation.deadline,
      .what = fmt::format("{} {} did not end within {} ms", name_of(operation.kind), ticket, limit.count())};
  Turnstile& turnstile = membership.turnstiles.of(operation);
  if (!turnstile.wait(ticket, deadline.give_up, [&] { return arena.failure().has_value(); })) {
    return tl::unexpected(arena.declare(
        {core::Errc::timeout, fmt::format("group '{}': {}: an earlier operation of rank {} has not run",
                                          arena.group().name, deadline.what, arena.group().self.value)}));
  }
  if (auto error = arena.failure()) return tl::unexpected(*std::move(error));
  const bool is_message = operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
  auto result =
      is_message ? run_message(arena, operation, deadline) : run_collective(arena, operation, deadline);
  turnstile.pass();
  return result;
}

class SharedMemoryGroup final : public Group {
 public:
  explicit SharedMemoryGroup(std::shared_ptr<Arena> arena)
      : membership_(std::make_shared<Membership>(std::move(arena))) {}

  int index() const override { return membership_->arena->index(); }
  int size() const override { return membership_->arena->size(); }
  const std::string& name() const override { return membership_->arena->group().name; }

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

  void abort(core::Error reason) override { membership_->arena->abort(std::move(reason)); }

 private:
  std::shared_ptr<Membership> membership_;
};

}  // namespace

core::Result<std::unique_ptr<Group>> SharedMemoryBackend::create_group(GroupOptions options) {
  return std::make_unique<SharedMemoryGroup>(TRY(Arena::establish(options, rendezvous_, options_)));
}

}  // namespace troupe::gpu
