#include "gpu/collective/blocking_group.hpp"

#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/flight_recorder.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/collective/turnstile.hpp"

namespace troupe::gpu {
namespace {

class BlockingGroup final : public Group {
 public:
  explicit BlockingGroup(std::unique_ptr<BlockingMember> member)
      : state_(std::make_shared<State>(std::move(member))) {}

  int index() const override { return state_->member->index(); }
  int size() const override { return static_cast<int>(state_->member->group().members.size()); }
  const std::string& name() const override { return state_->member->group().name; }

  core::Result<std::shared_ptr<OperationStatus>> post(Operation operation, StreamView stream) override {
    operation = TRY(prepare(std::move(operation), index(), size()));
    const std::string_view label = name_of(operation.kind);
    const TaskCost cost{.bytes_touched = operation.input.bytes + operation.output.bytes};
    auto status = std::make_shared<OperationStatus>();
    const Turnstile::Ticket ticket = state_->turnstiles.of(operation).take();
    FlightEntry* const entry = state_->track.posted(operation, ticket);
    declare(*stream, operation);
    stream->enqueue(label, cost, [state = state_, operation = std::move(operation), status, ticket, entry] {
      auto result = state->run(operation, ticket, entry);
      FlightTrack::ended(entry, result);
      status->finish(std::move(result));
    });
    return status;
  }

  core::Result<void> run(Operation operation) override {
    operation = TRY(prepare(std::move(operation), index(), size()));
    const Turnstile::Ticket ticket = state_->turnstiles.of(operation).take();
    FlightEntry* const entry = state_->track.posted(operation, ticket);
    auto result = state_->run(operation, ticket, entry);
    FlightTrack::ended(entry, result);
    return result;
  }

  void abort(core::Error reason) override { state_->member->abort(std::move(reason)); }

 private:
  // Shared by the group and its tasks on streams, which may outlive it.
  struct State {
    explicit State(std::unique_ptr<BlockingMember> owned)
        : member(std::move(owned)),
          turnstiles(static_cast<int>(member->group().members.size())),
          track(member->group(), member->index()) {}

    core::Result<void> run(const Operation& operation, Turnstile::Ticket ticket, FlightEntry* entry) {
      const OperationDeadline deadline(operation.kind, ticket, operation.deadline);
      Turnstile& turnstile = turnstiles.of(operation);
      if (!turnstile.wait(ticket, deadline, [this] { return member->failure().has_value(); })) {
        const GroupOptions& group = member->group();
        return tl::unexpected(member->fail(
            {core::Errc::timeout, fmt::format("group '{}': {}: an earlier operation of rank {} has "
                                              "not run",
                                              group.name, deadline.passed(), group.self.value)}));
      }
      if (auto error = member->failure()) return tl::unexpected(*std::move(error));
      FlightTrack::launched(entry);
      auto result = member->run(operation, ticket, deadline);
      turnstile.pass();
      return result;
    }

    std::unique_ptr<BlockingMember> member;
    Turnstiles turnstiles;
    const FlightTrack track;
  };

  std::shared_ptr<State> state_;
};

}  // namespace

core::Result<void> Group::run(Operation operation) {
  return core::fail(core::Errc::unavailable, "group '{}': {} runs on a stream; post it", name(),
                    name_of(operation.kind));
}

std::string OperationDeadline::what() const {
  return text_.empty() ? fmt::format("{} {}", name_of(kind_), number_) : text_;
}

std::string OperationDeadline::passed() const {
  return fmt::format("{} did not end within {} ms", what(),
                     std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count());
}

std::unique_ptr<Group> make_blocking_group(std::unique_ptr<BlockingMember> member) {
  return std::make_unique<BlockingGroup>(std::move(member));
}

}  // namespace troupe::gpu
