#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

gpu::Operation LoadedBytes::operation(std::chrono::nanoseconds deadline) const {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::all_to_all;
  operation.dtype = core::DType::u8;
  operation.input = input;
  operation.output = output;
  operation.input_counts = input_counts;
  operation.output_counts = output_counts;
  operation.deadline = deadline;
  return operation;
}

void DataPlane::State::gather_loaded() {
  std::vector<std::shared_ptr<gpu::OperationStatus>> gathers;
  const auto gathered = plan.optimizer_is_sharded() ? buckets.size() : 0;
  for (const auto bucket : core::indices<core::BucketIndex>(gathered)) {
    auto posted = gather_parameters(bucket);
    if (!posted) {
      say(messages::Role::trainer, 0, messages::StateGathered{messages::failure_of(posted.error())});
      return;
    }
    gathers.push_back(std::move(*posted));
  }
  tell_gathered(std::move(gathers), nullptr);
}

void DataPlane::State::exchange_loaded(LoadedBytes bytes) {
  mark_begin();
  auto posted = groups.all->post(bytes.operation(options.collective_deadline), communication.get());
  if (!posted) {
    say(messages::Role::trainer, 0, messages::StateGathered{messages::failure_of(posted.error())});
    return;
  }
  tell_gathered({std::move(*posted)}, std::move(bytes.owner));
}

/// When the stream has passed them all. `owner` keeps their memory until then.
void DataPlane::State::tell_gathered(std::vector<std::shared_ptr<gpu::OperationStatus>> operations,
                                     std::shared_ptr<const void> owner) {
  communication->notify([this, operations = std::move(operations), owner = std::move(owner)] {
    messages::StateGathered gathered;
    for (const auto& operation : operations) {
      const auto result = operation->result();
      if (result && !*result && !gathered.failure.failed) gathered.failure = messages::failure_of(*result);
    }
    operation_began_ns = 0;
    say(messages::Role::trainer, 0, std::move(gathered));
  });
}

}  // namespace troupe::actors
