#include "actors/planes/step/step_context.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

core::Result<StepStreams> StepStreams::create(gpu::Device& device, const RankProgram& program,
                                              std::size_t bucket_count) {
  CHECK(program.program().streams == 1, "updates come after the verdict, and so after all of the one stream");
  const auto slots = [&](core::Pool pool) {
    return static_cast<std::size_t>(program.program().credits[static_cast<std::size_t>(pool)]);
  };
  StepStreams made;
  made.accumulate = TRY(device.create_stream({"accumulate", 0}));
  made.communication = TRY(device.create_stream({"communication", 1}));
  made.update = TRY(device.create_stream({"update", 0}));
  made.buckets.resize(bucket_count);
  made.released.resize(slots(core::Pool::parameters));
  made.cleared.resize(slots(core::Pool::gradients));
  for (auto& bucket : made.buckets) {
    for (auto* event :
         {&bucket.prepared, &bucket.exchanged, &bucket.reduced, &bucket.cleared, &bucket.updated}) {
      *event = TRY(device.create_event());
    }
  }
  for (auto& event : made.released) event = TRY(device.create_event());
  for (auto& event : made.cleared) event = TRY(device.create_event());
  for (auto& event : made.staged) event = TRY(device.create_event());
  made.measured = TRY(device.create_event());
  return made;
}

void StepContext::say(messages::Role role, std::uint32_t index, messages::Message message) const {
  // The device speaks for whoever asked it: from and to are roles of this rank.
  const messages::Address to{options.rank, role, index};
  options.post({to, to, options.epoch, std::move(message)});
}

}  // namespace troupe::actors
