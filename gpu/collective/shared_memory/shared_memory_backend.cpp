#include "gpu/collective/shared_memory/shared_memory_backend.hpp"

#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/blocking_group.hpp"
#include "gpu/collective/shared_memory/collectives.hpp"

namespace troupe::gpu {
namespace {

class SharedMemoryMember final : public BlockingMember {
 public:
  explicit SharedMemoryMember(std::unique_ptr<Arena> arena) : arena_(std::move(arena)) {}

  const GroupOptions& group() const override { return arena_->group(); }
  int index() const override { return arena_->index(); }
  core::Result<void> run(const Operation& operation, std::uint64_t /*sequence*/,
                         const OperationDeadline& deadline) override {
    const bool is_message = operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
    return is_message ? run_message(*arena_, operation, deadline)
                      : run_collective(*arena_, operation, deadline);
  }
  core::Error fail(core::Error error) override { return arena_->declare(std::move(error)); }
  void abort(core::Error reason) override { arena_->abort(std::move(reason)); }
  std::optional<core::Error> failure() const override { return arena_->failure(); }

 private:
  std::unique_ptr<Arena> arena_;
};

}  // namespace

core::Result<std::unique_ptr<Group>> SharedMemoryBackend::create_group(GroupOptions options) {
  auto arena = TRY(Arena::establish(options, rendezvous_, options_));
  return make_blocking_group(std::make_unique<SharedMemoryMember>(std::move(arena)));
}

}  // namespace troupe::gpu
