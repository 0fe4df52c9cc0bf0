#include <algorithm>
#include <utility>

#include "actors/planes/step/data_plane_state.hpp"
#include "actors/planes/step/verdict.hpp"
#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

void DataPlane::State::launch(const LaunchCollective& work) {
  auto job = job_of(program.launch(work.entry), work.step);
  const auto done = carry_out(job);
  options.launched(work.step, work.entry);
  if (!done) return fail(work, std::move(job), done.error());
  complete(work, std::move(job.flight));
}

DataPlane::State::Job DataPlane::State::job_of(const PlannedLaunch& launch, core::Step step) {
  Job job{.launch = launch,
          .step = step,
          .bucket = launch.bucket.value_or(core::BucketIndex{}),
          .from = launch.from,
          .to = launch.to};
  for (const auto& sum : launch.held)
    job.roots.push_back(sum_at(sum, job.from, job.from, job.bucket, launch.slot));
  return job;
}

DataPlane::State::Posted DataPlane::State::carry_out(Job& job) {
  const auto& recipe = program.recipe(job.launch);
  TRY(act(recipe.before, job));
  for (job.chunk = 0; job.chunk < job.launch.chunks; ++job.chunk) TRY(act(recipe.each_chunk, job));
  return act(recipe.after, job);
}

DataPlane::State::Posted DataPlane::State::act(const std::vector<core::RecipeStep>& steps, Job& job) {
  for (const auto& step : steps) TRY((this->*kActs[static_cast<std::size_t>(step.action)])(step, job));
  return {};
}

DataPlane::State::Posted DataPlane::State::post_operation(gpu::Operation operation, Job& job) {
  auto& stream = stream_of(job.launch);
  if (!job.flight.began_ns) {
    job.flight.began_ns = std::make_shared<std::atomic<std::int64_t>>(0);
    stream->notify([this, began = job.flight.began_ns] {
      const auto now = device.now();
      *began = now.count();
      communicating.begin(now);
    });
  }
  operation.deadline = options.collective_deadline;
  operation.step = job.step;
  if (job.launch.bucket) operation.unit = static_cast<std::int32_t>(job.launch.bucket->value);
  auto& group = *groups.of.at(core::communicator_of(*job.launch.entry));
  job.flight.operations.push_back(TRY(group.post(std::move(operation), stream.get())));
  return {};
}

void DataPlane::State::fail(const LaunchCollective& work, Job job, const core::Error& error) {
  note_failure(job.launch, work.step);
  if (job.flight.began_ns) stream_of(job.launch)->notify([this] { communicating.end(device.now()); });
  say(messages::Role::conductor, 0,
      messages::CollectiveDone{work.step, work.entry, work.sequence, messages::failure_of(error)});
}

void DataPlane::State::keep_verdict(const PrepareVerdict& work) {
  std::lock_guard lock(verdict_mutex);
  verdict = work;
}

/// Every reduction of the step was launched before, so "update" has measured every bucket before this.
DataPlane::State::Posted DataPlane::State::write_verdict(const core::RecipeStep& step, Job& job) {
  {
    // The previous step's verdict was read before this one was requested, so nothing is copying these words.
    std::lock_guard lock(verdict_mutex);
    gpu::declare(device, "words of the verdict", {}, {arena.own_verdict()});
    const auto words = arena.own_verdict().as<std::int64_t>();
    actors::write_verdict(verdict.losses, verdict.refuse, verdict.wishes, verdict.alike,
                          words.first(verdict_words()));
    CHECK(expert_counts.size() == words.size() - verdict_words(), "a step counts where its tokens go");
    std::copy(expert_counts.begin(), expert_counts.end(), words.subspan(verdict_words()).begin());
  }
  auto& on = queue(step, job);
  gpu::copy(arena.own_verdict(), arena.verdict(), on.get());
  gpu::add_square_sums(arena.squares(), squares_of_verdict(arena.verdict()), on.get());
  return {};
}

DataPlane::State::Posted DataPlane::State::read_verdict(const core::RecipeStep& step, Job& job) {
  gpu::copy(arena.verdict(), arena.common_verdict(), queue(step, job).get());
  {
    std::lock_guard lock(verdict_mutex);
    verdict_launched = job.step;
  }
  job.flight.then.emplace_back([this, of = job.step] {
    gpu::declare(device, "the verdict", {arena.common_verdict()}, {});
    const auto words = arena.common_verdict().as<std::int64_t>();
    const auto counts = words.subspan(verdict_words());
    {
      std::lock_guard lock(verdict_mutex);
      all_expert_counts.assign(counts.begin(), counts.end());
      verdict_arrived = of;
      arrived_words.assign(words.begin(), words.end());
    }
    say(messages::Role::rank_supervisor, 0, messages::VerdictArrived{of, verdict_of(words)});
  });
  return {};
}

void DataPlane::State::complete(const LaunchCollective& work, Flight flight) {
  stream_of(program.launch(work.entry))->notify([this, work, flight = std::move(flight)] {
    const auto now = device.now();
    messages::CollectiveDone done{work.step, work.entry, work.sequence, {}};
    for (const auto& operation : flight.operations) {
      const auto result = operation->result();
      if (result && !*result && !done.failure.failed) done.failure = messages::failure_of(*result);
    }
    trace_launch(work, flight, now);
    if (done.failure.failed) note_failure(program.launch(work.entry), work.step);
    if (!done.failure.failed) {
      for (const auto& then : flight.then) then();
    }
    say(messages::Role::conductor, 0, std::move(done));
  });
}

void DataPlane::State::note_failure(const PlannedLaunch& launch, core::Step step) {
  if (!launch.moves_gradients()) return;
  std::lock_guard lock(verdict_mutex);
  reduction_failed = step;
}

messages::Verdict DataPlane::State::verdict_of(std::span<const std::int64_t> words) const {
  const auto& o = plan.options;
  return actors::read_verdict(words.first(verdict_words()),
                              {o.lanes, o.microbatches, o.average, o.loss_divisor});
}

void DataPlane::State::trace_launch(const LaunchCollective& work, const Flight& flight,
                                    std::chrono::nanoseconds end) {
  if (!flight.began_ns) return;
  communicating.end(end);
  if (!options.tracer) return;
  const auto& launch = program.launch(work.entry);
  const auto flow = launch.bucket ? bucket_flow(work.step, *launch.bucket) : 0;
  trace_span("communication", describe(launch), std::chrono::nanoseconds(flight.began_ns->load()), end, flow);
}

/// Before anything is sent: each entry has its group, with as many members as its counts are for.
core::Result<void> DataPlane::State::check(const DataPlaneGroups& made) const {
  for (const auto& launch : program.launches()) {
    const auto communicator = core::communicator_of(*launch.entry);
    const auto found = made.of.find(communicator);
    if (found == made.of.end()) {
      return core::fail(core::Errc::internal, "{} needs the group {}, which was not made", describe(launch),
                        core::describe(communicator));
    }
    const auto members = launch.entry->counts.members();
    if (found->second->size() == members) continue;
    return core::fail(core::Errc::internal, "{} is planned for {} members of {}, and the group {} has {}",
                      describe(launch), members, core::describe(communicator), found->second->name(),
                      found->second->size());
  }
  return {};
}

void DataPlane::State::take(DataPlaneGroups made) {
  std::lock_guard lock(groups_mutex);
  groups = std::move(made);
  if (aborted) abort_groups();
}

// A rank may be lost while the groups are being made.
void DataPlane::State::abort(const core::Error& reason) {
  std::lock_guard lock(groups_mutex);
  if (!aborted) aborted = reason;
  abort_groups();
}

void DataPlane::State::abort_groups() {
  for (const auto& group : groups.owned) group->abort(*aborted);
  for (const auto& group : groups.trainers) group->abort(*aborted);
}

void DataPlane::State::say(messages::Role role, std::uint32_t index, messages::Message message) {
  // The device speaks for whoever asked it: from and to are roles of this rank.
  messages::Address to{rank(), role, index};
  options.post({to, to, options.epoch, std::move(message)});
}

void DataPlane::State::trace_span(const char* track, std::string name, std::chrono::nanoseconds begin,
                                  std::chrono::nanoseconds end, std::uint64_t flow) {
  if (!options.tracer) return;
  options.tracer->add({core::TraceEvent::Kind::span, track, std::move(name), begin, end, 0, flow});
}

}  // namespace troupe::actors
