#include "actors/session/trainer_inbox.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "gpu/collective/flight_recorder.hpp"

namespace troupe::actors {

namespace {

/// After this a wait may be for a call that another rank will not make.
constexpr auto kLongWait = std::chrono::seconds(2);

}  // namespace

TrainerInbox::TrainerInbox(std::uint32_t buckets, TrainerPatience& patience)
    : patience_(patience),
      published_(buckets),
      merged_(buckets, {core::Step{-1}, core::Lane{-1}}),
      units_(buckets, {core::Step{-1}, core::PlanEntryIndex{-1}}) {
  for (auto& step : published_) step.store(-1, std::memory_order_relaxed);
}

void TrainerInbox::deliver(const messages::Envelope& envelope) {
  std::lock_guard lock(mutex_);
  learn();
  dispatch(envelope.body,
           Overloaded{
               [&](const messages::Welcome&) { welcome_ = true; },
               [&](const messages::Farewell&) { farewell_ = true; },
               [&](const messages::StepDecided& decided) { decided_ = decided; },
               [&](const messages::StepCommitted& committed) { committed_ = committed.step; },
               [&](const messages::Published& published) {
                 published_[published.bucket].store(published.step.value, std::memory_order_release);
               },
               [&](const messages::LaneMerged& merged) {
                 merged_[merged.bucket] = {merged.step, merged.lane};
               },
               [&](const messages::UnitGathered& unit) {
                 units_[unit.bucket] = {unit.step, unit.entry};
               },
               [&](const messages::StoreValue& value) { store_values_.push_back(value); },
               [&](const messages::SaveOver& over) {
                 saves_.push_back(over);
                 saves_over_ += 1;
               },
               [&](const messages::BucketStaged& staged) {
                 auto& saves = envelope.from.role == messages::Role::local_writer ? staged_locally_ : staged_;
                 saves.add(staged.sequence);
               },
               [&](const messages::LocalSaveOver& over) {
                 local_saves_.push_back(over);
                 local_saves_over_ += 1;
               },
               [&](const messages::RetrieveOver& over) { retrieved_ = over; },
               [&](const messages::StateGathered& gathered) { gathered_ = gathered; },
               [&](const messages::LoadedShared& shared) { shared_ = shared; },
               [&](const messages::WaitNote& note) { note_ = note.text; },
               [&](const messages::StepFailed& failed) {
                 if (!failure_) failure_ = messages::error_of(failed.failure);
                 if (recorder_) recorder_->fail();
               },
           });
  patience_.wake();
}

void TrainerInbox::learn() {
  known_.join(gpu::HostLine::current().past());
  knows_order_.store(known_.clock().lines() > 0, std::memory_order_release);
}

bool TrainerInbox::is_published(core::BucketIndex bucket, core::Step step) const {
  if (published_[bucket].load(std::memory_order_acquire) < step.value) return false;
  if (knows_order_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    gpu::HostLine::current().join(known_.clock());
  }
  return true;
}

void TrainerInbox::StagedSaves::add(std::uint64_t save) {
  later.insert(save);
  for (; later.erase(through + 1) == 1; ++through) {
  }
}

core::Result<void> TrainerInbox::wait(std::string what, const std::function<bool()>& ready,
                                      std::chrono::nanoseconds deadline) {
  std::unique_lock lock(mutex_);
  waiting_for_ = std::move(what);
  if (recorder_) recorder_->wait_begins(waiting_for_);
  const bool over = wait_told(
      lock, [&] { return failure_.has_value() || ready(); }, deadline);
  std::string waited_for = std::exchange(waiting_for_, {});
  if (recorder_) recorder_->wait_ends();
  gpu::HostLine::current().join(known_.clock());
  if (failure_) return tl::unexpected(*failure_);
  if (over) return {};
  return core::fail(core::Errc::timeout, "the trainer waited {} s for {}{}",
                    std::chrono::duration_cast<std::chrono::seconds>(deadline).count(), waited_for,
                    note_.empty() ? "" : "; " + note_);
}

core::Result<void> TrainerInbox::wait_or_fail(std::string what, const std::function<bool()>& ready,
                                              std::chrono::nanoseconds deadline) {
  auto waited = wait(std::move(what), ready, deadline);
  if (waited || waited.error().code != core::Errc::timeout) return waited;
  return tl::unexpected(fail(std::move(waited.error())));
}

core::Error TrainerInbox::fail(core::Error error) {
  if (!on_deadline_ || failure()) return error;
  auto first = on_deadline_(std::move(error));
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(first);
  return *failure_;
}

void TrainerInbox::expect(std::optional<messages::TrainerCalls> need, Tell tell) {
  need_ = std::move(need);
  tell_ = std::move(tell);
}

/// Most waits are short, and nobody is told of them.
bool TrainerInbox::wait_told(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
                             std::chrono::nanoseconds deadline) {
  if (!need_ || deadline <= kLongWait) return patience_.wait(lock, ready, deadline);
  if (patience_.wait(lock, ready, kLongWait)) return true;
  const auto tell = [&](const messages::TrainerCalls& waits) {
    lock.unlock();
    tell_(waits);
    lock.lock();
  };
  tell(*need_);
  const bool over = patience_.wait(lock, ready, deadline - kLongWait);
  tell({need_->rank, need_->calls, false, need_->needs, need_->count});
  return over;
}

core::Result<void> TrainerInbox::wait_welcome(std::chrono::nanoseconds deadline) {
  return wait(
      "all ranks to join", [&] { return welcome_; }, deadline);
}

core::Result<void> TrainerInbox::wait_farewell(std::chrono::nanoseconds deadline) {
  return wait(
      "all ranks to finish", [&] { return farewell_; }, deadline);
}

core::Result<messages::StepDecided> TrainerInbox::wait_decided(core::Step step,
                                                               std::chrono::nanoseconds deadline) {
  TRY(wait_or_fail(
      fmt::format("the decision of step {}", step.value), [&] { return decided_ && decided_->step == step; },
      deadline));
  std::lock_guard lock(mutex_);
  return *decided_;
}

core::Result<void> TrainerInbox::wait_committed(core::Step step, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("the update of step {}", step.value), [&] { return committed_ >= step; }, deadline);
}

core::Result<void> TrainerInbox::wait_published(core::BucketIndex bucket, core::Step step,
                                                std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("the parameters of bucket {} after step {}", bucket.value, step.value),
      [&] { return published_[bucket].load(std::memory_order_acquire) >= step.value; }, deadline);
}

core::Result<void> TrainerInbox::wait_merged(core::BucketIndex bucket, core::Step step, core::Lane lane,
                                             std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("the partial sums of bucket {} of lane {} of step {}", bucket.value, lane.value,
                  step.value),
      [&] { return merged_[bucket] >= std::pair(step, lane); }, deadline);
}

core::Result<void> TrainerInbox::wait_unit(core::BucketIndex bucket, core::Step step,
                                           core::PlanEntryIndex entry, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("the parameters of bucket {} to be gathered in step {}", bucket.value, step.value),
      [&] { return units_[bucket] >= std::pair(step, entry); }, deadline);
}

core::Result<void> TrainerInbox::wait_saves(std::uint64_t over, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("save {} to end", over), [&] { return saves_over_ >= over; }, deadline);
}

std::vector<messages::SaveOver> TrainerInbox::take_saves() {
  std::lock_guard lock(mutex_);
  return std::exchange(saves_, {});
}

core::Result<void> TrainerInbox::wait_local_saves(std::uint64_t over, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("local save {} to end", over), [&] { return local_saves_over_ >= over; }, deadline);
}

core::Result<void> TrainerInbox::wait_staged(messages::Role writer, std::uint64_t save,
                                             std::chrono::nanoseconds deadline) {
  const auto& staged = writer == messages::Role::local_writer ? staged_locally_.through : staged_.through;
  return wait_or_fail(
      fmt::format("save {} to copy the trainer's own tensors", save), [&] { return staged >= save; },
      deadline);
}

std::vector<messages::LocalSaveOver> TrainerInbox::take_local_saves() {
  std::lock_guard lock(mutex_);
  return std::exchange(local_saves_, {});
}

core::Result<void> TrainerInbox::wait_retrieved(std::chrono::nanoseconds deadline) {
  TRY(wait_or_fail(
      "lost copies to come from the clique", [&] { return retrieved_.has_value(); }, deadline));
  std::lock_guard lock(mutex_);
  const auto over = *std::exchange(retrieved_, std::nullopt);
  if (over.failure.failed) return tl::unexpected(messages::error_of(over.failure));
  return {};
}

core::Result<void> TrainerInbox::wait_gathered(std::chrono::nanoseconds deadline) {
  TRY(wait_or_fail(
      "loaded parameters to be gathered", [&] { return gathered_.has_value(); }, deadline));
  std::lock_guard lock(mutex_);
  const auto gathered = *std::exchange(gathered_, std::nullopt);
  if (gathered.failure.failed) return tl::unexpected(messages::error_of(gathered.failure));
  return {};
}

core::Result<void> TrainerInbox::wait_shared(std::chrono::nanoseconds deadline) {
  TRY(wait_or_fail(
      "ranks to share what they have read", [&] { return shared_.has_value(); }, deadline));
  std::lock_guard lock(mutex_);
  const auto shared = *std::exchange(shared_, std::nullopt);
  if (shared.failure.failed) return tl::unexpected(messages::error_of(shared.failure));
  return {};
}

core::Result<void> TrainerInbox::wait_collective(std::size_t group, const std::string& name,
                                                 std::uint64_t number, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      fmt::format("operation {} of group {} to end", number, name),
      [&] { return group < collectives_.size() && collectives_[group] >= number; }, deadline);
}

core::Result<void> TrainerInbox::wait_launched(std::int64_t place, std::chrono::nanoseconds deadline) {
  return wait_or_fail(
      "collectives to be launched that come before one of its own", [&] { return has_launched(place); },
      deadline);
}

void TrainerInbox::collective_over(std::size_t group, std::uint64_t number) {
  std::lock_guard lock(mutex_);
  learn();
  if (collectives_.size() <= group) collectives_.resize(group + 1, 0);
  collectives_[group] = number;
  patience_.wake();
}

void TrainerInbox::launched(std::int64_t place) {
  std::lock_guard lock(mutex_);
  learn();
  launched_.store(place, std::memory_order_release);
  patience_.wake();
}

core::Result<std::string> TrainerInbox::wait_store_value(std::uint64_t request,
                                                         std::chrono::nanoseconds deadline) {
  auto find = [&] {
    return std::find_if(store_values_.begin(), store_values_.end(),
                        [&](const messages::StoreValue& value) { return value.request == request; });
  };
  TRY(wait(
      "a value of the job's store", [&] { return find() != store_values_.end(); }, deadline));
  std::lock_guard lock(mutex_);
  auto found = find();
  std::string value = std::move(found->value);
  store_values_.erase(found);
  return value;
}

std::optional<core::Error> TrainerInbox::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::string TrainerInbox::waiting_for() const {
  std::lock_guard lock(mutex_);
  return waiting_for_;
}

}  // namespace troupe::actors
