#include "gpu/collective/nccl/group_state.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/profiler.hpp"
#include "gpu/collective/operations.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

using core::Errc;
using core::Error;
using Clock = std::chrono::steady_clock;

/// Describes the operation as all members must have posted it.
std::string common_text(const Operation& operation) {
  const Signature signature = signature_of(operation);
  std::string text = fmt::format("{} {}", name_of(operation.kind), core::name_of(operation.dtype));
  if (reduces(operation.kind)) text += fmt::format(" {}", name_of(operation.reduce));
  if (operation.kind == OperationKind::broadcast) text += fmt::format(" from {}", operation.peer);
  if (operation.kind == OperationKind::all_to_all) return text;
  text += fmt::format(" {}", signature.elements);
  for (const auto& counts : {signature.input_counts, signature.output_counts}) {
    for (std::size_t member = 0; member < counts.size(); ++member) text += fmt::format(" {}", counts[member]);
  }
  return text;
}

bool is_message(const Operation& operation) {
  return operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
}

/// Calls `launch` within one task of each posting's stream, for observers of tasks. Not at all if a device
/// has failed.
void as_tasks(std::span<const Posting> postings, const std::function<void()>& launch) {
  if (postings.empty()) return launch();
  const Posting& first = postings.front();
  const auto within = [&] { as_tasks(postings.subspan(1), launch); };
  const bool has_native = first.stream->run_native(name_of(first.operation.kind), [&](void* /*native*/) {
    within();
    // NCCL's errors are not failures of the device.
    return 0;
  });
  if (!has_native) within();
}

}  // namespace

NcclGroup::State::State(NcclDevice& device, GroupOptions options, int index,
                        std::unique_ptr<NcclCommunicator> communicator, Buffer words)
    : device_(device),
      options_(std::move(options)),
      index_(index),
      words_(std::move(words)),
      communicator_(std::move(communicator)) {}

core::Result<std::vector<std::shared_ptr<OperationStatus>>> NcclGroup::State::post(
    std::vector<Posting> postings) {
  std::vector<NcclPlan> plans;
  const int size = static_cast<int>(options_.members.size());
  for (const Posting& posting : postings) {
    plans.push_back(TRY(plan_nccl_calls(posting.operation, index_, size, words_.view().subview(0, 4))));
  }
  std::vector<Running> running;
  std::vector<std::shared_ptr<OperationStatus>> statuses;
  for (const Posting& posting : postings) {
    running.push_back(TRY(begin(posting.operation)));
    statuses.push_back(running.back().status);
  }
  const auto launched = launch(postings, plans, running);
  if (!launched) fail(launched.error());
  keep(postings, std::move(running));
  device_.watch().wake();
  return statuses;
}

void NcclGroup::State::keep(const std::vector<Posting>& postings, std::vector<Running> running) {
  std::lock_guard lock(mutex_);
  for (const Posting& posting : postings) count(posting.operation);
  for (Running& each : running) {
    if (!failure_) {
      running_.push_back(std::move(each));
      continue;
    }
    // The call that failed the group did not see this one.
    each.finish(tl::unexpected(*failure_));
    give_back(each);
  }
}

core::Result<NcclGroup::State::Running> NcclGroup::State::begin(const Operation& operation) {
  Running running;
  running.deadline = operation.deadline;
  running.started = TRY(device_.take_event());
  running.done = TRY(device_.take_event());
  running.status = std::make_shared<OperationStatus>([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->look();
  });
  std::lock_guard lock(mutex_);
  running.what = fmt::format("{} {}", name_of(operation.kind), posted_++);
  if (numbers_) running.entry = track_.posted(operation, numbers_->of(operation).take());
  return running;
}

core::Result<void> NcclGroup::State::launch(std::vector<Posting>& postings,
                                            const std::vector<NcclPlan>& plans,
                                            std::vector<Running>& running) {
  std::vector<NcclLaunch> launches;
  // Clocks overflow when nanoseconds::max() is added to now.
  std::chrono::nanoseconds limit = std::chrono::hours(24 * 365);
  for (std::size_t i = 0; i < postings.size(); ++i) {
    limit = std::min(limit, postings[i].operation.deadline);
    for (const NcclCall& call : plans[i].calls) {
      launches.push_back({call, device_.port().native(postings[i].stream)});
    }
  }
  if (launches.empty()) return enqueue(postings, plans, running, [] { return core::Result<void>(); });
  const NcclPatience patience{
      .give_up = Clock::now() + limit, .limit = limit, .is_over = [this] { return failure().has_value(); }};
  return enqueue(postings, plans, running, [&] {
    auto launched = core::Result<void>(core::fail(Errc::unavailable,
                                                  "group '{}': {} came after the failure of its device",
                                                  options_.name, running.front().what));
    as_tasks(postings, [&] { launched = communicator_->launch(launches, patience); });
    return launched;
  });
}

core::Result<void> NcclGroup::State::enqueue(std::vector<Posting>& postings,
                                             const std::vector<NcclPlan>& plans,
                                             std::vector<Running>& running,
                                             const std::function<core::Result<void>()>& calls) {
  const auto current = TRY(device_.port().make_current());
  const core::ProfiledScope range(device_.device().profiler(), "collectives",
                                  fmt::format("{} of {}", running.front().what, options_.name));
  std::lock_guard lock(device_.launches());
  if (auto error = failure()) return tl::unexpected(*std::move(error));
  for (std::size_t i = 0; i < postings.size(); ++i) {
    postings[i].stream->record(running[i].started.get());
    declare(*postings[i].stream, postings[i].operation);
    for (const auto& copy : plans[i].copies) gpu::copy(copy.source, copy.destination, postings[i].stream);
  }
  TRY(calls());
  for (std::size_t i = 0; i < postings.size(); ++i) postings[i].stream->record(running[i].done.get());
  return {};
}

bool NcclGroup::State::look() {
  finish_completed();
  if (auto late = find_late()) {
    fail(*std::move(late));
    return true;
  }
  {
    std::lock_guard lock(mutex_);
    if (running_.empty() || failure_) return false;
  }
  if (communicator_) {
    if (auto error = communicator_->async_error()) fail(*std::move(error));
  }
  return true;
}

void NcclGroup::State::finish_completed() {
  // Under the lock: a caller that queries a status meanwhile must find it in the list, or finished.
  std::lock_guard lock(mutex_);
  for (auto each = running_.begin(); each != running_.end();) {
    if (!each->done->is_complete()) {
      ++each;
      continue;
    }
    each->finish({});
    give_back(*each);
    each = running_.erase(each);
  }
}

std::optional<Error> NcclGroup::State::find_late() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (Running& each : running_) {
    if (!each.began && each.started->is_complete()) {
      each.began = now;
      FlightTrack::launched(each.entry);
    }
    if (!each.began || now - *each.began < each.deadline) continue;
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(each.deadline);
    return Error{
        Errc::timeout,
        fmt::format("{}: {} did not end within {} ms; NCCL does not say which member is missing: compare "
                    "what the members have posted to the group; this one has posted {}, with digest {:016x}",
                    NcclCaller{options_.name, options_.epoch, options_.self, device_.port().name}.text(),
                    each.what, limit.count(), order_.operations, order_.digest)};
  }
  return std::nullopt;
}

void NcclGroup::State::fail(Error error) {
  // Held to the end, so that callers waiting for the disposal find it.
  std::lock_guard ending(ending_);
  finish_completed();
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    // Before the abort ends the kernels, so that their end is not mistaken for success.
    failure_ = error;
    for (Running& each : running_) {
      each.finish(tl::unexpected(error));
      give_back(each);
    }
    running_.clear();
  }
  if (!communicator_) return;
  disposal_ = communicator_->abort();
  device_.watch().wake();
}

void NcclGroup::State::leave() {
  (void)look();
  std::string still_running;
  {
    std::lock_guard lock(mutex_);
    if (!running_.empty()) still_running = running_.front().what;
  }
  if (!still_running.empty()) {
    fail({Errc::aborted,
          fmt::format("group '{}': it was given up while {} ran", options_.name, still_running)});
  }
  if (failure()) {
    (void)wait_for_disposal();
  } else if (communicator_) {
    communicator_->leave();
    device_.watch().wake();
  }
}

bool NcclGroup::State::wait_for_disposal() {
  std::lock_guard ending(ending_);
  return disposal_ == nullptr || device_.disposal().wait(disposal_);
}

void NcclGroup::State::count(const Operation& operation) {
  if (is_message(operation)) return;
  ++order_.operations;
  order_.digest = core::hash64(common_text(operation), order_.digest);
}

NcclOrder NcclGroup::State::order() const {
  std::lock_guard lock(mutex_);
  return order_;
}

void NcclGroup::State::forget_order() {
  std::lock_guard lock(mutex_);
  order_ = {};
  posted_ = 0;
}

void NcclGroup::State::record() {
  std::lock_guard lock(mutex_);
  numbers_.emplace(static_cast<int>(options_.members.size()));
  track_ = FlightTrack(options_, index_);
}

void NcclGroup::State::give_back(Running& running) {
  device_.return_event(std::move(running.started));
  device_.return_event(std::move(running.done));
}

std::optional<Error> NcclGroup::State::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace troupe::gpu
